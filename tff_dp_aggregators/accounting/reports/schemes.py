"""What is said of schemes of participation, in the words of `templates/schemes.j2`."""

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.reports import terms


def assumption(schema: sampling.Schema) -> str:
  """What is assumed, for the statement and as a fact of the report."""
  return _said('assumption', sampling.of(schema))


def sentence(schema: sampling.Schema) -> str:
  """What is assumed, for the report's list of assumptions."""
  return _said('sentence', sampling.of(schema))


def heading(schema: sampling.Schema) -> str:
  """What the rows of a comparison under a scheme assume, and what epsilon is for."""
  return _said('heading', sampling.of(schema))


def enforced_by(schedule: sampling.Schedule) -> str:
  """What makes sure that a schedule keeps its scheme."""
  way, scheme = 'own', None
  if isinstance(schedule, sampling.Replay):
    way, scheme = 'replay', sampling.of(schedule.schema)
  elif isinstance(schedule, sampling.SampledSchedule):
    way, scheme = 'sampled', schedule.sampling
  elif type(schedule) in (sampling.RandomEligible, sampling.ShuffledEpochs):
    way = 'limits'
  return _said('enforced_by', type(schedule).__name__, scheme, way)


def _said(macro: str, *about: object) -> str:
  words = terms.sentences('schemes.j2')
  return terms.in_a_line(getattr(words, macro)(*about))

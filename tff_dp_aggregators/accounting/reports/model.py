"""The statement as typed data, from which the JSON schema of reports is made.

`statement` makes these structs, and `to_json` converts them to JSON-ready values. The
JSON schema has their docstrings, the comments of fields, and fields from registries.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Optional, TypeVar, Union

import msgspec
from msgspec import Meta

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.base import checks

# The `format` of every JSON report.
FORMAT: Final = 'tff_dp_aggregators.privacy_report'
VERSION: Final = 7  # Reports of other versions are refused.

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
NonNegative = Annotated[float, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
Factor = Annotated[float, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Points = list[Annotated[list[float], Meta(min_length=2, max_length=2)]]


def _doc(description: str) -> Any:
  return Meta(description=description)


# Fields that several structs have.
BuiltFor = Annotated[Positive, _doc('Rounds that the mechanism was built for.')]
OfAllTogether = Annotated[
  Optional[float],
  _doc('Of the Gaussian mechanism that all are together; null if they are not one.'),
]
Epsilon = Annotated[Optional[NonNegative], _doc('Epsilon at delta; null if infinite.')]
Delta = Annotated[float, Meta(gt=0, lt=1, description='At which epsilon is stated.')]
AnyAdjacency = Literal['zero_out', 'add_or_remove', 'replace_one']
Adjacency = Annotated[AnyAdjacency, _doc('Name of the neighbouring relation.')]
Checksum = Annotated[
  str,
  Meta(pattern='^sha256:[0-9a-f]{64}$', description='Checksum of the strategy.'),
]
Sha256 = Annotated[str, Meta(pattern='^[0-9a-f]{64}$', description='SHA-256, in hex.')]
Exactness = Annotated[
  Literal['exact', 'bound'], _doc('Whether the sensitivity is exact or a bound.')
]
Found = Annotated[
  Optional[Literal['noise_multiplier', 'num_rounds', 'max_participations']],
  _doc('What was found from the target; null if everything was given.'),
]
Rho = Annotated[
  Union[float, msgspec.UnsetType], _doc('Asked for in zCDP (arXiv:1605.02065), if so.')
]
Origin = Annotated[
  Literal['recorded', 'stated', 'not_stated'],
  _doc('In a file of the run, by who made the report and not verified, or nowhere.'),
]
Simulation = Annotated[
  Optional[Literal['packed', 'one_by_one']],
  _doc('Many clients in one computation, or one by one; null if that is not known.'),
]
EachPartHasItsOwn = Annotated[None, _doc('Each part has its own.')]
# What reports without privacy state, as there is none.
NO_GUARANTEE: Final = {
  **dict.fromkeys(('epsilon', 'delta')),
  'is_private': False,
  **dict.fromkeys(('epsilon_rdp', 'zcdp_rho', 'gdp_mu')),
}
NoGuarantee = Annotated[dict[str, Optional[bool]], _doc('None.')]
# Fields that registries add, which `to_json` writes beside the others.
Registered = dict[str, Any]


_Model = TypeVar('_Model', bound='Model')


class Model(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
  """The base class of the structs of a statement."""

  @classmethod
  def of(cls: type[_Model], *objects: Any, **given: Any) -> _Model:
    """Takes fields from `given`, or else from the first object with that attribute."""
    for name in set(cls.__struct_fields__) - set(given):
      for each in objects:
        if hasattr(each, name):
          given[name] = getattr(each, name)
          break
    return cls(**given)


class NamedAdjacency(Model, frozen=True, kw_only=True):
  """The neighbouring relation: which data sets must look alike."""

  name: Adjacency
  meaning: str  # In words.


class Definition(Model, frozen=True, kw_only=True):
  """What the guarantee protects, and from whom."""

  privacy_unit: str  # Whose privacy it is.
  adjacency: NamedAdjacency
  outputs: str  # What the adversary sees.
  covered: list[str]  # Data accesses that the guarantee covers.
  not_covered: list[str]  # Data accesses that no guarantee covers.


class AdaptiveClipping(Model, frozen=True, kw_only=True):
  """How the clip norm is adapted."""

  clipped_count_stddev: float  # Noise of the count of small norms.
  values_noise_multiplier: float  # Noise of the updates (arXiv:1905.03871).


class IntegerNoise(Model, frozen=True, kw_only=True):
  """Grid and wrapping of integer noise, in steps of the grid."""

  padded_dimension: Positive  # Numbers that a client sends, a power of two.
  steps: PositiveFloat  # Steps of the grid in a clip norm.
  local_stddev: PositiveFloat  # Standard deviation of a client's share of noise.
  l2_sensitivity: PositiveFloat  # Largest L2 norm that a client sends, rounded.
  l1_sensitivity: PositiveFloat  # Largest L1 norm that a client sends, rounded.
  rounding_factor: Factor  # l2_sensitivity over steps: what rounding costs.
  rounding_error: NonNegative  # Its largest stddev in a sum, in clip norms.
  beta: NonNegative  # Largest probability that a client rounds again; exempts nothing.
  clients: Positive  # The most clients in a round, as planned or in the ledger.
  wrap_probability: Share  # Largest one that an entry of a sum wraps; costs no privacy.


class Mechanism(Model, frozen=True, kw_only=True):
  """The matrix mechanism: C X + z, with C the strategy."""

  name: str  # Name of the mechanism.
  strategy: str  # Kind of the strategy matrix C.
  strategy_checksum: Checksum
  num_rounds: BuiltFor
  noise_site: str  # Who makes the noise, as the flag --noise_site has it.
  registered: Registered
  noise_buffers: Count  # Noise kept from round to round, in model sizes.
  # L2 bound of a client's contribution to a round, as stated or in all of the ledger.
  clip_norm: Optional[float]
  adaptive_clipping: Optional[AdaptiveClipping]
  # Stddev of z over the clip norm; of one client's noise where each hides its own.
  noise_multiplier: NonNegative
  # The server's noise with clients_and_server, which the guarantee does not count.
  server_noise_multiplier: Optional[NonNegative]
  # The most that a client changes C X by, in clip norms; if sampled, in one round.
  sensitivity: PositiveFloat
  sensitivity_squared: PositiveFloat  # Its square.
  sensitivity_kind: Exactness
  effective_noise_multiplier: NonNegative  # noise_multiplier / sensitivity.
  integer_noise: Optional[IntegerNoise]
  # Epsilon of noise that is only simulated, in all planned rounds; or null.
  simulated_epsilon: Optional[NonNegative]
  noise_source: str  # Where the randomness comes from.
  error_of: Literal['sum', 'client']  # Whose noise rmse and max_error are of.
  # Root mean square over rounds of the noise in the sum of all rounds so far.
  rmse: float
  max_error: float  # Largest of the same over rounds.


class Part(Mechanism, frozen=True, kw_only=True):
  """A part of a joint mechanism: its weights, and the fields of its mechanism."""

  part: str  # Name of the part.
  patterns: Annotated[list[str], Meta(min_length=1)]  # For names of its weights.
  weights: Optional[list[str]]  # Names of its weights; null if it is of no run.
  shapes: Optional[list[list[Count]]]  # Shapes of its weights, or null.
  num_parameters: Optional[Count]  # Numbers in all its weights, or null.
  share: Fraction  # Share in the sum of 1 / effective_noise_multiplier^2.
  share_of_mu_squared: Optional[Fraction]  # Over Gaussian parts; null for other noise.


class JointMechanism(Model, frozen=True, kw_only=True):
  """Parts of a model, each with a mechanism of its own."""

  name: Literal['joint']  # Several parts together.
  num_rounds: BuiltFor
  noise_site: Literal['server']  # Who makes the noise of all parts.
  strategy_checksum: Checksum
  adaptive_clipping: None = None  # Clip norms of parts are fixed.
  noise_multiplier: EachPartHasItsOwn = None
  sensitivity_squared: EachPartHasItsOwn = None
  sensitivity_kind: Exactness
  effective_noise_multiplier: OfAllTogether
  noise_source: str  # Where the randomness comes from.
  # A weight is of the first part with a pattern for its name.
  parts: Annotated[list[Part], Meta(min_length=2)]


class Composed(Model, frozen=True, kw_only=True):
  """Several runs together."""

  name: Literal['composition']  # Several runs together.
  noise_multiplier: EachPartHasItsOwn = None
  sensitivity_squared: EachPartHasItsOwn = None
  effective_noise_multiplier: OfAllTogether


class Participation(Model, frozen=True, kw_only=True):
  """Assumptions about which clients take part when; schemas add their own numbers."""

  schema: str  # Which schema.
  num_rounds: Positive  # Rounds in all.
  registered: Registered
  assumption: str  # In words.
  min_separation: Positive  # Any two rounds of one client differ by at least this.
  rounds_between: Count  # Rounds strictly between them: min_separation - 1.
  max_participations: Positive  # Most rounds of one client, as it is assumed.
  possible_by_separation: Positive  # Most rounds of one client by the separation alone.
  assumed_at_most: Optional[Positive]  # max_participations, if more are possible.
  enforced_by: str  # What enforces the separation, or the sampling.
  cap_enforced_by: Optional[str]  # What enforces assumed_at_most, if there is one.
  source: Optional[dict[str, Any]]  # Source of the limits: the summary of a round log.


class AbortedAttempts(Model, frozen=True, kw_only=True):
  """Attempts at rounds that were aborted, of which nothing was released."""

  count: Count  # Number of attempts.
  rounds: list[Count]  # The rounds that were attempted, each once.
  epsilon: Optional[NonNegative]  # Spent by reports that were sent; null if infinite.


class Reporting(Model, frozen=True, kw_only=True):
  """Dropouts and reporting goal; fields are null if there were none."""

  dropout_rate: Optional[float]  # Probability that a client did not report, by chance.
  reporting_goal: Optional[int]  # Least number of reports for a round.
  denominator: Optional[float]  # Divisor of the sum, however many clients reported.


class BeforeClipping(Model, frozen=True, kw_only=True):
  """Processing of updates before they are clipped, which changes no guarantee."""

  zeroing_norm: Optional[float]  # Updates of a larger L2 norm counted as zeros.
  coordinate_bound: Optional[float]  # Largest magnitude of a coordinate; or null.


class LedgerHead(Model, frozen=True, kw_only=True):
  """Length and hash of a ledger, which show whether lines were changed or removed."""

  lines: Positive  # Number of lines; a round released again has more than one.
  sha256: Sha256


class ClipNorms(Model, frozen=True, kw_only=True):
  """Bounds of the clip norms of rounds; null if a round had none, or by parts."""

  smallest: Optional[NonNegative]  # Over all rounds.
  largest: Optional[NonNegative]  # Over all rounds.


class Stopped(Model, frozen=True, kw_only=True):
  """A run that ended before the last of its planned rounds."""

  rounds_completed: Positive  # Rounds in the ledger or log.
  rounds_planned: Positive  # Rounds that were planned.
  epsilon_completed: Optional[float]  # If their number was fixed before any ran.
  epsilon_planned: Optional[float]  # For any rule to stop that looks at results alone.
  # What fixed the number, not verified; without it, the guarantee is epsilon_planned.
  rounds_fixed_by: Optional[str]


class Run(Model, frozen=True, kw_only=True):
  """What ran."""

  rounds_completed: Count  # Rounds in the ledger.
  rounds_released_again: list[Count]  # Those with the same result twice; no cost.
  bytes_cut_off: Count  # Length of an incomplete last line of the ledger, or 0.
  aborted_attempts: AbortedAttempts
  simulation: Simulation
  reporting: Optional[Reporting]
  before_clipping: Optional[BeforeClipping]
  ledger_head: LedgerHead
  clip_norms: ClipNorms
  # Generators that drew the noise, in order; null where none is stated.
  noise_generators: Annotated[list[Optional[str]], Meta(min_length=1)]
  rounds_planned: BuiltFor
  epsilon_planned: Optional[float]  # Epsilon of all planned rounds; or null.


class Target(Model, frozen=True, kw_only=True):
  """The privacy target."""

  epsilon: Optional[float]  # Asked for; null if rho was.
  rho: Rho = msgspec.UNSET
  found: Found


class Tuning(Model, frozen=True):
  """The runs on the same clients from which this one was chosen."""

  num_runs: Positive  # Number of runs.
  epsilon: Epsilon  # All runs composed, at the delta of the chosen one; or infinite.

  def __post_init__(self) -> None:
    checks.check_positive_int('num_runs of tuning', self.num_runs)
    epsilon = math.inf if self.epsilon is None else self.epsilon
    is_number = not isinstance(epsilon, bool)
    if not (is_number and checks.check_number('epsilon of tuning', epsilon) >= 0):
      raise ValueError(f'epsilon of tuning must be at least 0; got {epsilon}.')
    msgspec.structs.force_setattr(self, 'epsilon', float(epsilon))

  def to_json(self) -> dict[str, Any]:
    """Returns JSON-ready values; infinity is `None`."""
    return to_json(self)


class Recognised(Model, frozen=True, kw_only=True):
  """The power of a test between neighbouring data sets (arXiv:1905.02383)."""

  false_alarms: float  # False positive rate of the test.
  share: Share  # Largest true positive rate of the test; 1 without a guarantee.


class Instead(Model, frozen=True, kw_only=True):
  """The accountant whose bound is stated, if the named one has no smaller bound."""

  accountant: str  # The accountant whose epsilon it is.
  reason: str  # Why, in a few words.


class AccountantsEpsilon(Model, frozen=True, kw_only=True):
  """Epsilon by one accountant."""

  name: str  # Name of the accountant.
  epsilon: Optional[float]  # Null if infinite.
  kind: str  # Whether it is exact or an upper bound, and by which method.
  instead: Optional[Instead]


class DeltasEpsilon(Model, frozen=True, kw_only=True):
  """Epsilon at one delta."""

  delta: float  # Delta of the guarantee.
  epsilon: Optional[float]  # Null if infinite.
  accountant: str  # The accountant whose epsilon it is.


class Guarantee(Model, frozen=True, kw_only=True):
  """The guarantee: the most that an adversary can learn."""

  epsilon: Epsilon
  delta: Delta
  is_private: bool  # Whether epsilon is finite.
  accountant: str  # The accountant of epsilon; the tightest unless asked for.
  registered: Registered
  # rho of zCDP (arXiv:1605.02065); null if not Gaussian, or infinite.
  zcdp_rho: Optional[float]
  # mu of Gaussian DP (arXiv:1905.02383); null if not Gaussian, or infinite.
  gdp_mu: Optional[float]
  pure_epsilon: Optional[NonNegative]  # With delta 0, of Laplace noise alone; or null.
  recognised: Recognised
  accountants: list[AccountantsEpsilon]  # By every accountant that was used.
  epsilon_by_delta: list[DeltasEpsilon]  # At `delta` and customary ones, largest first.


class OtherGuarantee(Model, frozen=True, kw_only=True):
  """A guarantee against another observer, or for another neighbouring relation."""

  # The observer: of the sums, a client of the rounds, a server of all that is sent.
  against: Literal['released', 'other_client', 'server', 'everybody']
  adjacency: Adjacency
  event: dict[str, Any]  # Privacy event, as events.to_json writes it.
  epsilon: Epsilon
  delta: Delta
  accountant: str  # The accountant whose epsilon it is.
  rests_on: str  # Further assumptions.


class OtherRelease(Model, frozen=True):
  """What another system released of the same clients, as stated and not verified."""

  name: str  # In a few words.
  epsilon: NonNegative  # For all that it released, and all data of a client.
  delta: Annotated[float, Meta(ge=0, lt=1)]  # To that epsilon.
  adjacency: Optional[AnyAdjacency] = None  # Null if it was not stated.

  def to_event(self) -> events.EpsilonDeltaDpEvent:
    """Returns the event that accountants read."""
    return events.EpsilonDeltaDpEvent(self.epsilon, self.delta)


class NbaflPlan(Model, frozen=True, kw_only=True):
  """Inputs of a plan of NbAFL (arXiv:1911.00222), and the noise that follows."""

  epsilon: PositiveFloat  # Target for one example.
  delta: Delta
  clip_norm: PositiveFloat  # C, the L2 bound of an upload.
  num_exposures: Positive  # L, how often a client's uploads are seen.
  num_rounds: Positive  # T, the number of models that are sent down.
  num_clients: Positive  # N, the number of clients.
  min_examples: Positive  # m, the least number of examples of a client.
  clients_per_round: Optional[Positive]  # K, drawn at random; null for all clients.
  # Noise by the published formulas, or the least that keeps what they promise.
  calibration: Literal['published', 'exact']
  name: Literal['nbafl']  # Name of the scheme.
  cohort: Positive  # K, or N if all take part in every round.
  uplink_sensitivity: float  # What one example is said to change an upload by.
  downlink_sensitivity: float  # What one example is said to change a mean by.
  uplink_stddev: float  # sigma_u, noise of a client in each coordinate.
  downlink_stddev: float  # sigma_d, noise of the server in a coordinate of a mean.
  client_noise_multiplier: float  # Noise of a client over the clip norm.
  server_noise_multiplier: float  # Noise of the server on a sum, over the clip norm.
  sum_noise_multiplier: float  # All noise in a round's sum, over the clip norm.


class NbaflGuarantee(Model, frozen=True, kw_only=True):
  """What the formulas claim and what holds, against one observer."""

  seen: Literal['uplink', 'downlink']  # It sees a client's uploads, or the models.
  unit: Literal['example', 'client']  # What neighbouring data sets differ in.
  adjacency: Adjacency
  releases: Positive  # Number of releases that are seen.
  noise_multiplier: float  # Noise of one release over what the unit can change it by.
  claimed_epsilon: Optional[float]  # Epsilon by the formulas; null if they claim none.
  epsilon: Optional[float]  # Epsilon by the accountants; null if infinite.
  delta: Delta


NbaflGuarantees = Annotated[
  list[NbaflGuarantee],
  Meta(min_length=1, description='What is claimed beside what holds.'),
]


class NbaflOfRun(Model, frozen=True, kw_only=True):
  """The plan of NbAFL that the noise of a run is from."""

  plan: NbaflPlan
  guarantees: NbaflGuarantees


class CanaryBound(Model, frozen=True, kw_only=True):
  """A lower bound of epsilon, by the guesses of an attacker with canaries."""

  # one_run is of arXiv:2305.08846, one_run_fdp of arXiv:2410.22235.
  method: Literal['one_run', 'one_run_fdp']
  curve: Literal['gdp', 'any']  # Assumed curve: of a Gaussian mechanism, or any.
  num_guesses: Count  # Guesses whether a canary was inserted, planned before the run.
  num_correct: Count  # Guesses that were right.
  epsilon: NonNegative  # The bound at the delta of the guarantee; 0 if none was found.
  contradicts: bool  # Whether it is above the epsilon of the guarantee.


class Canaries(Model, frozen=True, kw_only=True):
  """The results of an attacker with canaries, which are no guarantee."""

  num_canaries: Positive  # Canaries, each inserted with probability 1/2.
  num_inserted: Count  # Canaries that were inserted.
  num_rounds: Positive  # Rounds, from the first on, that the scores are computed from.
  confidence: Share  # Probability that all bounds are right.
  bounds: list[CanaryBound]
  # Epsilon of Gaussians fitted to the scores (arXiv:2302.03098), no bound; or null.
  estimate: Optional[NonNegative]


class Curves(Model, frozen=True, kw_only=True):
  """Points of the plots; infinite ones are left out."""

  epsilon_by_delta: Points  # [delta, epsilon], largest delta first.
  epsilon_by_round: Points = []  # [rounds, epsilon at the delta of the guarantee].
  epsilon_by_round_accountant: Optional[str] = None  # Null for a composition.
  error_by_round: Points = []  # [rounds, stddev of an entry of their sum].
  noise_correlation: Points = []  # [lag, correlation of the last round with that one].


class Provenance(Model, frozen=True, kw_only=True):
  """Origins of the facts that computing the report again does not confirm."""

  mechanism: Origin
  noise_multiplier: Origin
  enforced_by: Origin
  cap_enforced_by: Origin
  noise_source: Origin
  clip_norm: Origin
  code_version: Origin


class Software(msgspec.Struct, kw_only=True, rename={'dp_accounting': 'dp-accounting'}):
  """Names and versions of what computed the numbers."""

  tff_dp_aggregators: str  # Version of this package.
  dp_accounting: str  # Version of dp-accounting.
  numpy: str  # Version of NumPy.
  scipy: str  # Version of SciPy.
  python: str  # Version of Python.
  commit: Union[  # Commit of tff_dp_aggregators, if it ran from a git checkout.
    Annotated[str, Meta(pattern='^([0-9a-f]{40}|[0-9a-f]{64})$')], msgspec.UnsetType
  ] = msgspec.UNSET
  # Whether files had been changed since that commit.
  modified: Union[bool, msgspec.UnsetType] = msgspec.UNSET


class File(Model, frozen=True, kw_only=True):
  """A file that the numbers rest on."""

  role: str  # Role of the file.
  path: str  # Path at the time.
  sha256: Sha256


Files = Annotated[list[File], _doc('Files that the numbers rest on.')]


class VerificationInputs(Model, frozen=True, kw_only=True):
  """Inputs for computing everything again; a composition has few of them."""

  mechanism: Optional[dict[str, Any]] = None  # As Mechanism.to_json writes it.
  strategy: Optional[dict[str, Any]] = None  # Or strategies by part; null if large.
  event: dict[str, Any]  # Privacy event, as events.to_json writes it.
  delta: Delta
  accountant: Optional[str]  # Asked for; null for the tightest.
  target_epsilon: Optional[float] = None  # Asked for; null if none was.
  target_rho: Rho = msgspec.UNSET
  found: Found = None
  clip_norm: Optional[float] = None  # As stated, or in all rounds of the ledger.
  with_curves: bool  # Whether points of plots were asked for.


class Verification(Model, frozen=True, kw_only=True):
  """How to compute the numbers again."""

  command: Optional[str]  # One that prints the same numbers.
  files: Files
  inputs: VerificationInputs


class OtherVerification(Model, frozen=True, kw_only=True):
  """How to compute a plan of NbAFL again, or a report of a run without privacy."""

  command: Optional[str]  # One that prints the same numbers.
  files: Files = []
  inputs: dict[str, Any]  # The plan, or the accountant that was asked for.


class Report(Model, frozen=True, kw_only=True):
  """The fields that all reports begin with."""

  format: Literal['tff_dp_aggregators.privacy_report'] = FORMAT  # Marks reports.
  version: Literal[7] = VERSION  # Version of this schema.


class Private(Report, frozen=True, kw_only=True):
  """A mechanism, joint or not, a run of one, or several of them together.

  What is null for several together is stated by each part.
  """

  warnings: list[str]  # Shown first, such as against whom the guarantee does not hold.
  setting: str  # Who is trusted with what.
  definition: Definition
  mechanism: Any  # One of MECHANISMS, which the schema says.
  participation: Optional[Participation] = None
  run: Optional[Run] = None
  stopped: Union[Stopped, msgspec.UnsetType] = msgspec.UNSET  # If it ended early.
  target: Optional[Target] = None
  tuning: Optional[Tuning] = None
  guarantee: Guarantee
  # Others for the same noise, where clients make it; for several runs, what all have.
  other_guarantees: list[OtherGuarantee]
  canaries: Union[Canaries, msgspec.UnsetType] = msgspec.UNSET  # If there were some.
  nbafl: Union[NbaflOfRun, None, msgspec.UnsetType] = msgspec.UNSET
  parts: list[dict[str, Any]] = []  # Reports of runs.
  # What other systems released of the same clients, added to it.
  other_releases: Union[list[OtherRelease], msgspec.UnsetType] = msgspec.UNSET
  curves: Optional[Curves]
  code_version: Optional[str] = None  # Version of the code that trained, if known.
  provenance: Optional[Provenance] = None
  software: Software
  verification: Verification


class GuaranteeOfPlan(Model, frozen=True, kw_only=True):
  """The guarantee of one client, against whoever sees the models of all rounds."""

  epsilon: Epsilon
  delta: Delta
  is_private: bool  # Whether epsilon is finite.
  adjacency: Adjacency


class Nbafl(Report, frozen=True, kw_only=True):
  """A plan of NbAFL (arXiv:1911.00222): what its formulas claim, and what holds."""

  mechanism: NbaflPlan
  guarantee: GuaranteeOfPlan
  guarantees: NbaflGuarantees
  parts: Annotated[list[Any], Meta(max_length=0)] = []  # Empty.
  software: Software
  verification: OtherVerification


class SimulatedCohort(Model, frozen=True, kw_only=True):
  """A cohort larger than that of the run, whose noise the run has."""

  scale: Factor  # How many times larger it is, and its population.
  clients_per_round: PositiveFloat  # In the run.
  simulated_clients_per_round: PositiveFloat  # In the larger cohort.
  num_clients: Positive  # In the run.
  simulated_num_clients: Factor  # Population of the larger cohort.
  mechanism: str  # Name of the mechanism.
  strategy_checksum: Checksum
  noise_multiplier: NonNegative  # The run's: that of the larger cohort over the scale.
  simulated_noise_multiplier: NonNegative  # That of the larger cohort.
  clipped_count_stddev: Optional[NonNegative]  # With adaptive clipping; else null.
  simulated_clipped_count_stddev: Optional[NonNegative]  # The same.
  participation: str  # Who takes part, in words.
  rounds_completed: Positive  # Rounds in the ledger.
  rounds_planned: BuiltFor
  ledger_head: LedgerHead
  simulated_epsilon: Optional[NonNegative]  # For the larger cohort, not for this run.
  delta: Delta
  accountant: Optional[str]  # Whose epsilon it is; null without noise.
  adjacency: Adjacency
  target_epsilon: Optional[float]  # Asked for of the larger cohort; or null.


class WithoutPrivacy(Report, frozen=True, kw_only=True):
  """A run without a privacy mechanism, or with the noise of a larger cohort."""

  mechanism: None = None  # None that protects the clients of the run.
  simulation: Simulation
  simulated_cohort: Optional[SimulatedCohort]
  not_covered: list[str]  # Data accesses that no guarantee covers.
  tuning: Optional[Tuning]
  guarantee: NoGuarantee = msgspec.field(default_factory=NO_GUARANTEE.copy)
  verification: Optional[OtherVerification]


MECHANISMS = (Mechanism, JointMechanism, Composed)
REPORTS = (Private, Nbafl, WithoutPrivacy)


def is_plan(statement: dict[str, Any]) -> bool:
  """Whether a statement is of an NbAFL plan."""
  return (statement['mechanism'] or {}).get('name') == 'nbafl'


def runs(
  statement: dict[str, Any], number: str = ''
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the statements of single runs; parts have numbers such as 2 or 2.1."""
  if not statement.get('parts'):
    yield number, statement
    return
  for index, part in enumerate(statement['parts'], start=1):
    yield from runs(part, f'{number}.{index}' if number else f'{index}')


def to_json(statement: msgspec.Struct) -> dict[str, Any]:
  """Converts a struct to JSON-ready values; infinite numbers are `None`."""
  written: dict[str, Any] = _flat(msgspec.to_builtins(statement, enc_hook=float))
  return written


def _flat(value: Any) -> Any:
  if isinstance(value, list):
    return [_flat(each) for each in value]
  if not isinstance(value, dict):
    return None if isinstance(value, float) and math.isinf(value) else value
  flat = {key: _flat(each) for key, each in value.items()}
  registered = flat.pop('registered', {})
  return {**flat, **registered}

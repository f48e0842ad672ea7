"""The statement as typed data, which is the JSON schema of reports as well.

`statement` makes these structs, and `to_json` writes them as JSON-ready values.
`schema` describes them to others: it takes the sentences of their docstrings, and adds
what registries have.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Optional, TypeVar, Union

import msgspec
from msgspec import Meta

# What a JSON report says that it is.
FORMAT: Final = 'tff_dp_aggregators.privacy_report'
# Version of that format; a report of another version is refused.
VERSION: Final = 7

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
NonNegative = Annotated[float, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
Factor = Annotated[float, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
StatedDelta = Annotated[float, Meta(ge=0, lt=1)]
Point = Annotated[list[float], Meta(min_length=2, max_length=2)]


def _said(description: str) -> Any:
  return Meta(description=description)


# Fields that several structs have.
BuiltFor = Annotated[Positive, _said('Rounds that the mechanism was built for.')]
OfAllTogether = Annotated[
  Optional[float],
  _said('Of the Gaussian mechanism that all are together; null if they are not one.'),
]
IsPrivate = Annotated[bool, _said('Whether epsilon is finite.')]
ClipNorm = Annotated[Optional[NonNegative], _said('Over all rounds.')]
Name = Annotated[str, _said('Name of the mechanism.')]
InWords = Annotated[str, _said('In words.')]
Epsilon = Annotated[Optional[NonNegative], _said('Epsilon at delta; null if infinite.')]
Delta = Annotated[float, Meta(gt=0, lt=1, description='At which epsilon is stated.')]
AnyAdjacency = Literal['zero_out', 'add_or_remove', 'replace_one']
Adjacency = Annotated[AnyAdjacency, _said('Name of the neighbouring relation.')]
Accountant = Annotated[str, _said('Whose epsilon it is.')]
AskedAccountant = Annotated[
  Optional[str], _said('Accountant asked for; null for the tightest.')
]
Checksum = Annotated[
  str,
  Meta(pattern='^sha256:[0-9a-f]{64}$', description='Checksum of the strategy.'),
]
Sha256 = Annotated[str, Meta(pattern='^[0-9a-f]{64}$', description='SHA-256, in hex.')]
Commit = Annotated[str, Meta(pattern='^([0-9a-f]{40}|[0-9a-f]{64})$')]
Exactness = Annotated[
  Literal['exact', 'bound'], _said('Whether the sensitivity is exact or a bound.')
]
NoiseSource = Annotated[str, _said('Where the randomness comes from.')]
Found = Annotated[
  Optional[Literal['noise_multiplier', 'num_rounds', 'max_participations']],
  _said('What was found from the target; null if everything was given.'),
]
Origin = Annotated[
  Literal['recorded', 'stated', 'not_stated'],
  _said('In a file of the run, by who made the report and not verified, or nowhere.'),
]
Simulation = Annotated[
  Optional[Literal['packed', 'one_by_one']],
  _said('Many clients in one computation, or one by one; null if that is not known.'),
]
Command = Annotated[Optional[str], _said('A command that prints the same numbers.')]
Points = list[Point]
Warnings = Annotated[
  list[str], _said('Towards whom what is stated does not hold; stands above all else.')
]
NoParts = Annotated[list[Any], Meta(max_length=0, description='Empty.')]
EachPartHasItsOwn = Annotated[None, _said('Each part has its own.')]
Infinite = Annotated[None, _said('Infinite.')]
# Fields that registries add, which `to_json` writes beside the others.
Registered = dict[str, Any]


_Model = TypeVar('_Model', bound='Model')


class Model(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
  """What all structs of a statement have in common."""

  @classmethod
  def of(cls: type[_Model], *objects: Any, **given: Any) -> _Model:
    """One with what is given; what is not, as the first object has it that has it."""
    for name in set(cls.__struct_fields__) - set(given):
      for each in objects:
        if hasattr(each, name):
          given[name] = getattr(each, name)
          break
    return cls(**given)


class NamedAdjacency(Model, frozen=True, kw_only=True):
  """Which data sets must look alike."""

  name: Adjacency
  meaning: InWords


class Definition(Model, frozen=True, kw_only=True):
  """What is promised to whom.

  Attributes:
    privacy_unit: Whose privacy it is.
    outputs: What the adversary sees.
    covered: Data accesses that the guarantee covers.
    not_covered: Data accesses that it does not cover.
  """

  privacy_unit: str
  adjacency: NamedAdjacency
  outputs: str
  covered: list[str]
  not_covered: list[str]


class AdaptiveClipping(Model, frozen=True, kw_only=True):
  """How the clip norm is adapted.

  Attributes:
    clipped_count_stddev: Noise of the number of clients within the clip norm.
    values_noise_multiplier: That of the updates (arXiv:1905.03871, Theorem 1).
  """

  clipped_count_stddev: float
  values_noise_multiplier: float


class IntegerNoise(Model, frozen=True, kw_only=True):
  """Grid and wrapping of integer noise, in steps of the grid.

  Attributes:
    padded_dimension: Numbers that a client sends, a power of two.
    steps: Steps of the grid in a clip norm.
    local_stddev: Standard deviation of a client's share of noise.
    l2_sensitivity: Largest L2 norm that a client sends, rounded.
    l1_sensitivity: Largest L1 norm that a client sends, rounded.
    rounding_factor: l2_sensitivity over steps: what rounding costs.
    rounding_error: Its standard deviation in a sum, at most, in clip norms.
    beta: Largest probability that a client rounds again; it exempts nothing.
    clients: The most clients in a round, as planned or in the ledger.
    wrap_probability: Largest one that an entry of a sum wraps; costs no privacy.
  """

  padded_dimension: Positive
  steps: PositiveFloat
  local_stddev: PositiveFloat
  l2_sensitivity: PositiveFloat
  l1_sensitivity: PositiveFloat
  rounding_factor: Factor
  rounding_error: NonNegative
  beta: NonNegative
  clients: Positive
  wrap_probability: Share


class Mechanism(Model, frozen=True, kw_only=True):
  """The matrix mechanism: C X + z, with C the strategy.

  Attributes:
    strategy: Kind of the strategy matrix C.
    noise_site: Who makes the noise: the server, clients in shares of that of the sum,
      each client all of it (local), or the server in a simulation of that.
    noise_buffers: Noise that the server keeps from round to round, in model sizes.
    clip_norm: L2 bound of one client's contribution to one round, as stated or as in
      all rounds of the ledger; null if neither; the guarantee does not depend on it.
    noise_multiplier: Standard deviation of z over the clip norm; of one client's noise
      with the noise_site local, clients_and_server and local_approximate.
    server_noise_multiplier: That of the server with the noise_site clients_and_server,
      which the guarantee does not have; null for others.
    sensitivity: The most that one client changes C X by, in clip norms, in all its
      rounds, or in one of a sampled schema; after rounding of integer noise.
    sensitivity_squared: Its square.
    effective_noise_multiplier: noise_multiplier / sensitivity.
    simulated_epsilon: Epsilon of noise that is only simulated, at the guarantee's
      delta, in all planned rounds; null if noise is made as it is said, or infinite.
    error_of: Whether rmse and max_error are of the noise in the sum, or of that of one
      client, where it is not known how many there are.
    rmse: Root mean square over rounds of the noise in an entry of the sum of all rounds
      so far, in clip norms (error_of says whose noise).
    max_error: Largest of the same over rounds.
  """

  name: Name
  strategy: str
  strategy_checksum: Checksum
  num_rounds: BuiltFor
  noise_site: str
  registered: Registered
  noise_buffers: Count
  clip_norm: Optional[float]
  adaptive_clipping: Optional[AdaptiveClipping]
  noise_multiplier: NonNegative
  server_noise_multiplier: Optional[NonNegative]
  sensitivity: PositiveFloat
  sensitivity_squared: PositiveFloat
  sensitivity_kind: Exactness
  effective_noise_multiplier: NonNegative
  integer_noise: Optional[IntegerNoise]
  simulated_epsilon: Optional[NonNegative]
  noise_source: NoiseSource
  error_of: Literal['sum', 'client']
  rmse: float
  max_error: float


class Part(Mechanism, frozen=True, kw_only=True):
  """A part of a joint mechanism: its weights, and its mechanism as any other.

  Attributes:
    part: Name of the part.
    patterns: For names of its weights, but for those of earlier parts.
    weights: Names of its weights; null if the report is of no run.
    shapes: Shapes of its weights, or null.
    num_parameters: Numbers in all its weights, or null.
    share: Fraction of the sum of 1 / effective_noise_multiplier^2 of all parts, by
      which a target is divided when noise is found for it.
    share_of_mu_squared: Fraction of all Gaussian parts; null of other noise.
  """

  part: str
  patterns: Annotated[list[str], Meta(min_length=1)]
  weights: Optional[list[str]]
  shapes: Optional[list[list[Count]]]
  num_parameters: Optional[Count]
  share: Fraction
  share_of_mu_squared: Optional[Fraction]


class JointMechanism(Model, frozen=True, kw_only=True):
  """Parts of a model, each with a mechanism of its own.

  Attributes:
    name: Several parts together.
    noise_site: Who makes the noise of all parts.
    adaptive_clipping: Clip norms of parts are fixed.
    parts: In their order: a weight is of the first with a pattern for its name.
  """

  name: Literal['joint']
  num_rounds: BuiltFor
  noise_site: Literal['server']
  strategy_checksum: Checksum
  adaptive_clipping: None = None
  noise_multiplier: EachPartHasItsOwn = None
  sensitivity_squared: EachPartHasItsOwn = None
  sensitivity_kind: Exactness
  effective_noise_multiplier: OfAllTogether
  noise_source: NoiseSource
  parts: Annotated[list[Part], Meta(min_length=2)]


class Composed(Model, frozen=True, kw_only=True):
  """Several runs together.

  Attributes:
    name: Several runs together.
  """

  name: Literal['composition']
  noise_multiplier: EachPartHasItsOwn = None
  sensitivity_squared: EachPartHasItsOwn = None
  effective_noise_multiplier: OfAllTogether


class Participation(Model, frozen=True, kw_only=True):
  """What is assumed about who takes part when; each schema adds its own numbers.

  Attributes:
    schema: Which schema.
    num_rounds: Rounds in all.
    min_separation: Any two rounds of one client differ by at least this.
    rounds_between: Rounds strictly between them: min_separation - 1.
    max_participations: Most rounds of one client, as it is assumed.
    possible_by_separation: Most rounds of one client by the separation alone.
    assumed_at_most: max_participations, if the separation leaves more possible; or
      null.
    enforced_by: What makes sure of the separation, or of the sampling.
    cap_enforced_by: What makes sure of assumed_at_most; null if that is null.
    source: Where the limits come from, such as the summary of a round log.
  """

  schema: str
  num_rounds: Positive
  registered: Registered
  assumption: InWords
  min_separation: Positive
  rounds_between: Count
  max_participations: Positive
  possible_by_separation: Positive
  assumed_at_most: Optional[Positive]
  enforced_by: str
  cap_enforced_by: Optional[str]
  source: Optional[dict[str, Any]]


class AbortedAttempts(Model, frozen=True, kw_only=True):
  """Attempts at rounds that were aborted, of which nothing was released.

  Attributes:
    count: How many there are.
    rounds: The rounds that they were at, each once.
    epsilon: What they spent together, as reports that were sent; null if infinite.
  """

  count: Count
  rounds: list[Count]
  epsilon: Optional[NonNegative]


class Reporting(Model, frozen=True, kw_only=True):
  """Which clients that were asked reported.

  Attributes:
    dropout_rate: Probability that a client did not report, by chance; or null.
    reporting_goal: Least number of reports for a round; null if any number did.
    denominator: What the sum is divided by, however many reported.
  """

  dropout_rate: Optional[float]
  reporting_goal: Optional[int]
  denominator: Optional[float]


class BeforeClipping(Model, frozen=True, kw_only=True):
  """What was done with an update before it was clipped, which changes no guarantee.

  Attributes:
    zeroing_norm: Updates of a larger L2 norm counted as zeros; null if none did.
    coordinate_bound: Largest magnitude of a coordinate; or null.
  """

  zeroing_norm: Optional[float]
  coordinate_bound: Optional[float]


class LedgerHead(Model, frozen=True, kw_only=True):
  """Length and hash of a ledger, which show whether lines were changed or removed.

  Attributes:
    lines: Complete lines; a round released again has more than one.
  """

  lines: Positive
  sha256: Sha256


class ClipNorms(Model, frozen=True, kw_only=True):
  """Bounds of the clip norms of rounds; null if a round had none, or by parts."""

  smallest: ClipNorm
  largest: ClipNorm


class Stopped(Model, frozen=True, kw_only=True):
  """A run that ended before the last of its planned rounds.

  Attributes:
    rounds_completed: Rounds in the ledger or log.
    rounds_planned: That might have run.
    epsilon_completed: Epsilon of the rounds that ran, for a number of them that was
      fixed before anything was computed from clients; null if infinite.
    epsilon_planned: Epsilon of all planned rounds, which holds for any rule that looks
      at released results alone; null if infinite.
    rounds_fixed_by: What fixed the number, as stated and not verified; null if nobody
      states it, and then the guarantee is epsilon_planned, and epsilon_completed else.
  """

  rounds_completed: Positive
  rounds_planned: Positive
  epsilon_completed: Optional[float]
  epsilon_planned: Optional[float]
  rounds_fixed_by: Optional[str]


class Run(Model, frozen=True, kw_only=True):
  """What ran.

  Attributes:
    rounds_completed: Rounds in the ledger.
    rounds_released_again: Rounds whose same result was released again; no cost.
    bytes_cut_off: Length of the half line in which the ledger ends; 0 if it is whole.
    noise_generators: What drew the noise, in order; null where that is not stated.
    epsilon_planned: Epsilon of all planned rounds; or null.
  """

  rounds_completed: Count
  rounds_released_again: list[Count]
  bytes_cut_off: Count
  aborted_attempts: AbortedAttempts
  simulation: Simulation
  reporting: Optional[Reporting]
  before_clipping: Optional[BeforeClipping]
  ledger_head: LedgerHead
  clip_norms: ClipNorms
  noise_generators: Annotated[list[Optional[str]], Meta(min_length=1)]
  rounds_planned: BuiltFor
  epsilon_planned: Optional[float]


class Target(Model, frozen=True, kw_only=True):
  """The privacy target.

  Attributes:
    epsilon: Asked for; null if rho was.
    rho: Asked for in zCDP (arXiv:1605.02065), and else not there.
  """

  epsilon: Optional[float]
  rho: Union[float, msgspec.UnsetType] = msgspec.UNSET
  found: Found


class Tuning(Model, frozen=True):
  """Runs on the same clients among which this one was chosen."""

  num_runs: Annotated[Positive, _said('How many there were.')]
  epsilon: Epsilon


class Recognised(Model, frozen=True, kw_only=True):
  """What it means for who tells neighbouring data sets apart (arXiv:1905.02383).

  Attributes:
    false_alarms: Which part of those in one is wrongly suspected.
    share: Which part of the others is caught at most; 1 without a guarantee.
  """

  false_alarms: float
  share: Share


class Instead(Model, frozen=True, kw_only=True):
  """Whose bound a number is, where an accountant has no smaller one of its own.

  Attributes:
    reason: Why, in a few words.
  """

  accountant: Accountant
  reason: str


class AccountantsEpsilon(Model, frozen=True, kw_only=True):
  """Epsilon by one accountant.

  Attributes:
    name: Name of the accountant.
    epsilon: By it; null if infinite.
    kind: Whether it is exact or an upper bound, and by which method.
  """

  name: str
  epsilon: Optional[float]
  kind: str
  instead: Optional[Instead]


class DeltasEpsilon(Model, frozen=True, kw_only=True):
  """Epsilon at one delta.

  Attributes:
    delta: Delta of the guarantee.
    epsilon: At it; null if infinite.
  """

  delta: float
  epsilon: Optional[float]
  accountant: Accountant


class Guarantee(Model, frozen=True, kw_only=True):
  """What an adversary can learn at most.

  Attributes:
    accountant: Whose epsilon the report states; the tightest unless asked for.
    zcdp_rho: rho of zCDP (arXiv:1605.02065); null if not Gaussian, or infinite.
    gdp_mu: mu of Gaussian DP (arXiv:1905.02383); null if not Gaussian, or infinite.
    pure_epsilon: Epsilon with delta 0, of Laplace noise alone; null for other noise.
    accountants: Epsilon at `delta` by every accountant that was asked.
    epsilon_by_delta: The same at `delta` and at customary ones, largest delta first.
  """

  epsilon: Epsilon
  delta: Delta
  is_private: IsPrivate
  accountant: str
  registered: Registered
  zcdp_rho: Optional[float]
  gdp_mu: Optional[float]
  pure_epsilon: Optional[NonNegative]
  recognised: Recognised
  accountants: list[AccountantsEpsilon]
  epsilon_by_delta: list[DeltasEpsilon]


class OtherGuarantee(Model, frozen=True, kw_only=True):
  """What holds against somebody else, or for other neighbours.

  Attributes:
    against: Who looks: who sees the released sums, one other client of the rounds, a
      server that sees what each client sends, or everybody.
    event: Its privacy event, as events.to_json writes it.
    rests_on: What has to be true besides.
  """

  against: Literal['released', 'other_client', 'server', 'everybody']
  adjacency: Adjacency
  event: dict[str, Any]
  epsilon: Epsilon
  delta: Delta
  accountant: Accountant
  rests_on: str


class OtherRelease(Model, frozen=True):
  """What another system released of the same clients, as stated and not verified.

  Attributes:
    name: In a few words.
    epsilon: For all that it released, and all data of a client.
    delta: To that epsilon.
    adjacency: Which data sets are neighbours; null if it was not stated.
  """

  name: str
  epsilon: NonNegative
  delta: StatedDelta
  adjacency: Optional[Literal['zero_out', 'add_or_remove', 'replace_one']] = None


class NbaflInputs(Model, frozen=True, kw_only=True):
  """Inputs of a plan of NbAFL (arXiv:1911.00222), as nbafl.Nbafl takes them.

  Attributes:
    epsilon: For one example, as asked for.
    clip_norm: C, the L2 bound of an upload.
    num_exposures: L, how often a client's uploads are seen.
    num_rounds: T, how many models are sent down.
    num_clients: N, how many clients there are.
    min_examples: m, how many examples every client has at least.
    clients_per_round: K, how many take part in a round, drawn at random; null for all.
    calibration: By the published formulas, or the least that keeps what they promise.
  """

  epsilon: PositiveFloat
  delta: Delta
  clip_norm: PositiveFloat
  num_exposures: Positive
  num_rounds: Positive
  num_clients: Positive
  min_examples: Positive
  clients_per_round: Optional[Positive]
  calibration: Literal['published', 'exact']


class NbaflPlan(NbaflInputs, frozen=True, kw_only=True):
  """Inputs of a plan of NbAFL, and the noise that follows from them.

  Attributes:
    name: Name of the scheme.
    cohort: K, or N if all take part in every round.
    uplink_sensitivity: What one example is said to change an upload by.
    downlink_sensitivity: What one example is said to change a mean by.
    uplink_stddev: sigma_u, noise of a client in each coordinate.
    downlink_stddev: sigma_d, noise of the server in a coordinate of a mean.
    client_noise_multiplier: Noise of a client over the clip norm.
    server_noise_multiplier: Noise of the server on a round's sum, over the clip norm.
    sum_noise_multiplier: All noise in a round's sum, over the clip norm.
  """

  name: Literal['nbafl']
  cohort: Positive
  uplink_sensitivity: float
  downlink_sensitivity: float
  uplink_stddev: float
  downlink_stddev: float
  client_noise_multiplier: float
  server_noise_multiplier: float
  sum_noise_multiplier: float


class NbaflGuarantee(Model, frozen=True, kw_only=True):
  """What is claimed beside what holds, for one who sees something.

  Attributes:
    seen: 'uplink' for who sees a client's uploads, 'downlink' for who sees the models.
    unit: What neighbouring data sets differ in.
    releases: How many are seen.
    noise_multiplier: Noise of one release over what the unit can change it by.
    claimed_epsilon: What the formulas promise; null if nothing.
    epsilon: What the accountants say; null if infinite.
  """

  seen: Literal['uplink', 'downlink']
  unit: Literal['example', 'client']
  adjacency: Adjacency
  releases: Positive
  noise_multiplier: float
  claimed_epsilon: Optional[float]
  epsilon: Optional[float]
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
  """A lower bound of epsilon, by the guesses of an attacker with canaries.

  Attributes:
    method: one_run is of arXiv:2305.08846, one_run_fdp of arXiv:2410.22235.
    curve: The trade-off curve that it assumes: that of a Gaussian mechanism, or any.
    num_guesses: Guesses whether a canary was inserted, planned before the run.
    num_correct: Guesses that were right.
    epsilon: The bound, at the delta of the guarantee; 0 if nothing was found.
    contradicts: Whether it is above the epsilon of the guarantee.
  """

  method: Literal['one_run', 'one_run_fdp']
  curve: Literal['gdp', 'any']
  num_guesses: Count
  num_correct: Count
  epsilon: NonNegative
  contradicts: bool


class Canaries(Model, frozen=True, kw_only=True):
  """What an attacker with canaries reached, which is no guarantee.

  Attributes:
    num_canaries: Clients that were made up, each inserted with probability 1/2.
    num_inserted: Those of them that were.
    num_rounds: Rounds, from the first on, that the scores are made of.
    confidence: Probability that all bounds are right.
    estimate: Epsilon of Gaussians fitted to the scores (arXiv:2302.03098), no bound;
      null if infinite, or of too few canaries.
  """

  num_canaries: Positive
  num_inserted: Count
  num_rounds: Positive
  confidence: Share
  bounds: list[CanaryBound]
  estimate: Optional[NonNegative]


class Curves(Model, frozen=True, kw_only=True):
  """Points of the plots; infinite ones are left out.

  Attributes:
    epsilon_by_delta: [delta, epsilon], largest delta first.
    epsilon_by_round: [rounds, epsilon at the delta of the guarantee].
    epsilon_by_round_accountant: By which accountant that is; null for a composition.
    error_by_round: [rounds, stddev of the noise in an entry of their sum, in clip
      norms].
    noise_correlation: [lag, correlation of the last round's noise with that one's].
  """

  epsilon_by_delta: Points
  epsilon_by_round: Points
  epsilon_by_round_accountant: Optional[str]
  error_by_round: Points
  noise_correlation: Points


class Provenance(Model, frozen=True, kw_only=True):
  """From where facts are known that computing the report again does not confirm.

  Attributes:
    mechanism: Which strategy ran.
    noise_multiplier: How much noise it had.
  """

  mechanism: Origin
  noise_multiplier: Origin
  enforced_by: Origin
  cap_enforced_by: Origin
  noise_source: Origin
  clip_norm: Origin
  code_version: Origin


class Software(msgspec.Struct, kw_only=True, rename={'dp_accounting': 'dp-accounting'}):
  """Names and versions of what computed the numbers.

  Attributes:
    tff_dp_aggregators: Version of this package.
    dp-accounting: Version of dp-accounting.
    numpy: Version of NumPy.
    scipy: Version of SciPy.
    python: Version of Python.
    commit: Commit of tff_dp_aggregators, if it ran from a git checkout.
    modified: Whether files had been changed since that commit.
  """

  tff_dp_aggregators: str
  dp_accounting: str
  numpy: str
  scipy: str
  python: str
  commit: Union[Commit, msgspec.UnsetType] = msgspec.UNSET
  modified: Union[bool, msgspec.UnsetType] = msgspec.UNSET


class File(Model, frozen=True, kw_only=True):
  """A file that the numbers rest on.

  Attributes:
    role: What it is.
    path: Where it was.
  """

  role: str
  path: str
  sha256: Sha256


Files = Annotated[list[File], _said('Files that the numbers rest on.')]


class VerificationInputs(Model, frozen=True, kw_only=True):
  """From which everything is computed again; a composition has few of them.

  Attributes:
    mechanism: As Mechanism.to_json or JointMechanism.to_json writes it.
    strategy: As Strategy.to_json writes it, by part if there are; null if it is large.
    event: The privacy event of the guarantee, as events.to_json writes it.
    target_epsilon: Target that was asked for; null if none was.
    target_rho: That in zCDP; not there if none was asked for.
    clip_norm: As stated, or that of all rounds of the ledger; or null.
    with_curves: Whether points of plots were asked for.
  """

  mechanism: Optional[dict[str, Any]] = None
  strategy: Optional[dict[str, Any]] = None
  event: dict[str, Any]
  delta: Delta
  accountant: AskedAccountant
  target_epsilon: Optional[float] = None
  target_rho: Union[float, msgspec.UnsetType] = msgspec.UNSET
  found: Found = None
  clip_norm: Optional[float] = None
  with_curves: bool


class Verification(Model, frozen=True, kw_only=True):
  """How to compute the numbers again."""

  command: Command
  files: Files
  inputs: VerificationInputs


class Report(Model, frozen=True, kw_only=True):
  """What all reports begin with.

  Attributes:
    format: Marks these reports.
    version: Version of this schema.
  """

  format: Literal['tff_dp_aggregators.privacy_report'] = FORMAT
  version: Literal[7] = VERSION


class Single(Report, frozen=True, kw_only=True):
  """One mechanism, or one run of it.

  Attributes:
    setting: Who is trusted with what.
    other_guarantees: What else the same noise guarantees, where clients make it.
    canaries: What an attacker with canaries reached; only there if there were some.
    code_version: Version of the code that trained; null if it is not known.
    stopped: Only there if the run ended early.
  """

  warnings: Warnings
  setting: str
  definition: Definition
  mechanism: Mechanism
  participation: Participation
  run: Optional[Run]
  stopped: Union[Stopped, msgspec.UnsetType] = msgspec.UNSET
  target: Optional[Target]
  tuning: Optional[Tuning]
  guarantee: Guarantee
  other_guarantees: list[OtherGuarantee]
  canaries: Union[Canaries, msgspec.UnsetType] = msgspec.UNSET
  nbafl: Optional[NbaflOfRun]
  parts: NoParts = msgspec.field(default_factory=list)
  curves: Optional[Curves]
  code_version: Optional[str]
  provenance: Provenance
  software: Software
  verification: Verification


class Joint(Single, frozen=True, kw_only=True):
  """A joint mechanism, or one run of it."""

  mechanism: JointMechanism  # type: ignore[assignment]


class Composition(Report, frozen=True, kw_only=True):
  """Several runs on the same clients together, and what else was released of them.

  Attributes:
    setting: Who is trusted with what.
    other_guarantees: What else holds of all parts together.
    parts: Reports of the parts.
    other_releases: What other systems released of the same clients, added to it.
  """

  warnings: Warnings
  setting: str
  definition: Definition
  mechanism: Composed
  participation: EachPartHasItsOwn = None
  run: EachPartHasItsOwn = None
  target: EachPartHasItsOwn = None
  tuning: EachPartHasItsOwn = None
  guarantee: Guarantee
  other_guarantees: list[OtherGuarantee]
  parts: Annotated[list[dict[str, Any]], Meta(min_length=1)]
  other_releases: list[OtherRelease]
  curves: Optional[Curves]
  code_version: EachPartHasItsOwn = None
  provenance: EachPartHasItsOwn = None
  software: Software
  verification: Verification


class GuaranteeOfPlan(Model, frozen=True, kw_only=True):
  """The guarantee of one client, towards who sees the models of all rounds."""

  epsilon: Epsilon
  delta: Delta
  is_private: IsPrivate
  adjacency: Adjacency


class PlanInputs(Model, frozen=True, kw_only=True):
  """From which everything is computed again."""

  plan: NbaflInputs


class VerificationOfPlan(Model, frozen=True, kw_only=True):
  """How to compute the numbers again, from flags alone."""

  command: Command
  files: NoParts = msgspec.field(default_factory=list)
  inputs: PlanInputs


class Nbafl(Report, frozen=True, kw_only=True):
  """A plan of NbAFL (arXiv:1911.00222): what its formulas claim, and what holds."""

  mechanism: NbaflPlan
  guarantee: GuaranteeOfPlan
  guarantees: NbaflGuarantees
  parts: NoParts = msgspec.field(default_factory=list)
  software: Software
  verification: VerificationOfPlan


class SimulatedCohort(Model, frozen=True, kw_only=True):
  """A cohort larger than that of the run, whose noise the run has.

  Attributes:
    scale: How many times larger it is, and its population.
    clients_per_round: In the run.
    simulated_clients_per_round: In the larger cohort.
    num_clients: In the run.
    simulated_num_clients: Population that the larger cohort would be drawn from.
    noise_multiplier: The run's: that of the larger cohort over the scale.
    simulated_noise_multiplier: That of the larger cohort.
    clipped_count_stddev: With adaptive clipping, noise of the count; else null.
    simulated_clipped_count_stddev: The same for the larger cohort.
    participation: Who takes part, in words.
    rounds_completed: Rounds in the ledger.
    simulated_epsilon: Epsilon of the larger cohort, no guarantee of this run; or null.
    accountant: Whose epsilon it is; null without noise.
    target_epsilon: Asked for of the larger cohort; or null.
  """

  scale: Factor
  clients_per_round: PositiveFloat
  simulated_clients_per_round: PositiveFloat
  num_clients: Positive
  simulated_num_clients: Factor
  mechanism: Name
  strategy_checksum: Checksum
  noise_multiplier: NonNegative
  simulated_noise_multiplier: NonNegative
  clipped_count_stddev: Optional[NonNegative]
  simulated_clipped_count_stddev: Optional[NonNegative]
  participation: str
  rounds_completed: Positive
  rounds_planned: BuiltFor
  ledger_head: LedgerHead
  simulated_epsilon: Optional[NonNegative]
  delta: Delta
  accountant: Optional[str]
  adjacency: Adjacency
  target_epsilon: Optional[float]


class NoGuarantee(Model, frozen=True, kw_only=True):
  """There is none.

  Attributes:
    delta: None.
    is_private: It is not.
  """

  epsilon: Infinite = None
  delta: None = None
  is_private: bool = False
  epsilon_rdp: Infinite = None
  zcdp_rho: Infinite = None
  gdp_mu: Infinite = None


class InputsWithoutPrivacy(Model, frozen=True, kw_only=True):
  """What was asked for."""

  accountant: AskedAccountant = None


class VerificationWithoutPrivacy(Model, frozen=True, kw_only=True):
  """How to compute it again, from files."""

  command: Command = None
  files: Files
  inputs: InputsWithoutPrivacy


class WithoutPrivacy(Report, frozen=True, kw_only=True):
  """A run without a privacy mechanism, or with the noise of a larger cohort.

  Attributes:
    mechanism: There is none that protects the clients of the run.
    not_covered: What else was computed from clients' data without noise.
  """

  mechanism: None = None
  simulation: Simulation
  simulated_cohort: Optional[SimulatedCohort]
  not_covered: list[str]
  tuning: Optional[Tuning]
  guarantee: NoGuarantee = NoGuarantee()
  verification: Optional[VerificationWithoutPrivacy]


# All reports.
REPORTS = (Single, Joint, Composition, Nbafl, WithoutPrivacy)


def runs(
  statement: dict[str, Any], number: str = ''
) -> Iterator[tuple[str, dict[str, Any]]]:
  """The statements of single runs, with numbers such as 2 or 2.1 if they are parts."""
  if not statement.get('parts'):
    yield number, statement
    return
  for index, part in enumerate(statement['parts'], start=1):
    yield from runs(part, f'{number}.{index}' if number else f'{index}')


def to_json(statement: msgspec.Struct) -> dict[str, Any]:
  """A struct as JSON-ready values; infinite numbers are `None`."""
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

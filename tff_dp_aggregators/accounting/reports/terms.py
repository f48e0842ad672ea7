"""What reports and programs call accountants, kinds of noise and places of noise.

Numbers carry no words (`accountants`, `noises`, `sites`); here is what is said of each,
by name. Of an accountant that was registered from outside its name is said.
"""

from typing import NamedTuple, Optional

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting.accountants import monte_carlo


class AccountantTerms(NamedTuple):
  """What is said of an accountant.

  Attributes:
    kind: What its epsilon is: exact or a bound, numerical or not, and the citation.
    keeps: What it keeps of a mechanism, beginning with the name.
    title: The method in a few words.
    kind_of_bound: `kind` where the sensitivity, by which the event is made, is known by
      an upper bound; `None` if it is the same.
    keeps_of_bound: `keeps` there.
    beside: Accountants whose epsilons a report lists beside this one's, where they read
      the event.
    in_guarantee: Whether a report's guarantee has a field `epsilon_<name>`.
    checked_by: The accountant, sharing no code with this one, that has to come to the
      same when a report is verified; `None` if there is none.
  """

  kind: str
  keeps: str
  title: str
  kind_of_bound: Optional[str] = None
  keeps_of_bound: Optional[str] = None
  beside: tuple[str, ...] = ('exact', 'rdp', 'zcdp')
  in_guarantee: bool = False
  checked_by: Optional[str] = None

  def of_sensitivity(self, kind: str) -> 'AccountantTerms':
    """With the words for a sensitivity that is known so: 'exact' or 'bound'."""
    if kind == 'exact':
      return self
    return self._replace(
      kind=self.kind_of_bound or self.kind, keeps=self.keeps_of_bound or self.keeps
    )


ACCOUNTANTS = {
  accountants.EXACT: AccountantTerms(
    kind='exact: the privacy curve of a Gaussian mechanism (arXiv:1805.06530)',
    keeps='exact: the true curve of a Gaussian mechanism of this sensitivity, so no '
    'smaller epsilon holds for it',
    title='the exact curve of a Gaussian mechanism (arXiv:1805.06530)',
    in_guarantee=True,
    checked_by='pld',
    kind_of_bound='upper bound: the exact privacy curve of a Gaussian mechanism '
    '(arXiv:1805.06530), for an upper bound of the sensitivity',
    keeps_of_bound='exact: the true curve of a Gaussian mechanism, of a sensitivity '
    'that is an upper bound here, so that a smaller epsilon may hold',
  ),
  'pld': AccountantTerms(
    kind='upper bound, numerical: privacy loss distribution (arXiv:2207.04380)',
    keeps='pld (privacy loss distribution): the distribution of what an outcome gives '
    'away, on a grid, rounded up',
    title='privacy loss distributions',
    beside=(accountants.QUICK_BOUND,),  # zCDP says nothing of samples.
    in_guarantee=True,
  ),
  'prv': AccountantTerms(
    kind='upper bound, numerical: privacy random variable (arXiv:2106.02848)',
    keeps='prv (privacy random variable): the same distribution by another numerical '
    'method, with its error added',
    title='privacy random variables',
  ),
  accountants.QUICK_BOUND: AccountantTerms(
    kind='upper bound: Renyi DP at fixed orders (dp-accounting)',
    keeps='rdp (Renyi differential privacy): moments of what an outcome gives away; '
    'turning them into epsilon loses a little',
    title='Renyi DP',
    in_guarantee=True,
  ),
  'zcdp': AccountantTerms(
    kind='upper bound: closed form of zCDP (arXiv:1605.02065, Proposition 1.3)',
    keeps='zcdp (zero-concentrated differential privacy): one number, rho, turned into '
    'epsilon by a simple formula that loses more',
    title='the closed form of zCDP',
    in_guarantee=True,
  ),
  'monte_carlo': AccountantTerms(
    kind='upper bound of drawn outcomes (Monte Carlo), '
    f'at most {monte_carlo.MAX_OUTCOMES:,} for a figure in each direction, from a seed '
    'that the question gives, so that anybody draws the same; it holds but for a '
    f'probability of {monte_carlo.FAILURE_SHARE:.0%} of delta, counted in delta '
    '(arXiv:2412.16802, 2602.09338)',
    keeps='monte_carlo: the distribution of what an outcome gives away, as it is found '
    'in drawn outcomes, and that they may mislead as a part of delta',
    title='Monte Carlo',
    beside=(),
  ),
}


def of_accountant(name: str) -> AccountantTerms:
  """What is said of an accountant; its name, if it was registered from outside."""
  return ACCOUNTANTS.get(name) or AccountantTerms(f'by {name}', name, name)


def label(name: str, other: Optional[accountants.Instead]) -> str:
  """An accountant's name for a table, with whose bound it states if not its own.

  Example:
    >>> label('pld', accountants.Instead('rdp', 'the noise is too small'))
    "pld (rdp's bound, as the noise is too small)"
  """
  return (
    name if other is None else f"{name} ({other.accountant}'s bound, as {other.reason})"
  )


class OptionTerms(NamedTuple):
  """What is said of a number that noise or its site takes.

  Attributes:
    help: What it is and its default, to stand after 'For skellam: '.
    title: What it is called,
    meaning: and what it means.
  """

  help: str
  title: str
  meaning: str


OPTIONS = {
  'min_clients': OptionTerms(
    'how many clients report at least; a round with fewer is not released',
    'clients with noise',
    'as many reported in each round at least and kept their noise to themselves; with '
    'fewer a round is not released',
  ),
  'max_clients': OptionTerms(
    'how many clients report at most, for a sum of more may wrap around. Default: '
    '--min_clients',
    'clients at most',
    'a sum of more may wrap around, which costs no privacy, and the result of the '
    'round',
  ),
  'dimension': OptionTerms(
    'how many numbers a client sends, such as trainable parameters of a model; padded '
    'to a power of two',
    'numbers of a client',
    'padded to a power of two; each of them is rounded to a whole number, which makes '
    'a contribution larger',
  ),
  'bits': OptionTerms(
    'of the secure sum, from 2 to 30. Default with a target: the fewest that hardly '
    'cost noise',
    'bits of the secure sum',
    'sums are modulo two to the power of it; the grid is the finest for it with which '
    'sums wrap around in at most 1 of 10^6 rounds',
  ),
}


class NoiseTerms(NamedTuple):
  """What is said of a kind of noise.

  Attributes:
    scale: What the noise multiplier is relative to the clip norm.
    words: What the mechanism is, for readers who never saw this package.
    citations: Papers that it is from.
    cost: What a round costs; `None` if all rounds are one Gaussian.
  """

  scale: str
  words: str
  citations: tuple[str, ...] = ()
  cost: Optional[str] = None


def _of_integers(name: str, words: str, paper: str) -> NoiseTerms:
  return NoiseTerms(
    'standard deviation of an entry of the sum of min_clients shares, before rounding,',
    words,
    (paper,),
    f'What a round with {name} noise costs is known by its Renyi divergences '
    f'({paper}): of the sum of the shares of the fewest clients, against the longest '
    'contribution that rounding may make of a clipped one. They add up over the rounds '
    'of a client, and epsilon follows from them.',
  )


NOISES = {
  noises.GAUSSIAN.name: NoiseTerms(
    'standard deviation of an entry of z',
    'independent Gaussian noise in each round, as in DP-FedAvg',
  ),
  noises.LAPLACE.name: NoiseTerms(
    'scale of an entry of z, whose standard deviation is sqrt(2) times that,',
    'independent Laplace noise in each round (Dwork et al. 2006, theorem 1)',
    cost='A round with Laplace noise costs a client who is in it epsilon = 1 / the '
    'noise multiplier, with delta = 0; one who is in several of them at most the sum. '
    'The accountants compose the privacy loss of the rounds, which at a positive delta '
    'is less than that.',
  ),
  noises.SKELLAM.name: _of_integers(
    'skellam',
    'integers with Skellam noise that clients make in shares, under a secure sum',
    'arXiv:2110.04995',
  ),
  noises.DISCRETE_GAUSSIAN.name: _of_integers(
    'discrete gaussian',
    'integers with discrete Gaussian noise that clients make in shares, under a secure '
    'sum',
    'arXiv:2102.06387',
  ),
}


class SiteTerms(NamedTuple):
  """What is said of a place where noise is made.

  Attributes:
    help: What that is, for the help of `--noise_site`.
    setting: Who has to be trusted with what.
    kind: Of differential privacy, if it is not that of the server's noise.
    made_by: Who makes the noise.
    z: Whose noise the noise multiplier is of; `None` if that is clear.
    seen: What the adversary sees, in short,
    outputs: and in full.
    principle: What clients and server do, with the kind of noise as {noise}; `None` for
      what the kind of noise says.
    assumptions: What it rests on besides participation and the source of noise, with
      {min_clients}.
  """

  help: str
  setting: str
  kind: str = ''
  made_by: str = 'the server'
  z: Optional[str] = None
  seen: str = 'all that is released'
  outputs: str = (
    'all intermediate models: the adversary may see the noised aggregate of every '
    'round and everything computed from it, so the last model as well'
  )
  principle: Optional[str] = None
  assumptions: tuple[str, ...] = ()


_SERVER = SiteTerms(
  'the server adds it to the sum',
  'central differential privacy: the server that clips, sums and adds the noise is '
  'trusted, and sees each update (or, with secure aggregation, their sum)',
)
_CLIENTS = SiteTerms(
  'each client adds a share of it, and with --min_clients of them it is that of the '
  'server',
  'distributed differential privacy: each client clips its update and adds a share of '
  'the noise before it sends anything, so that no server is trusted with the noise; '
  'the guarantee is of the sum, and rests on a secure sum (or a server that looks at '
  'nothing else), and on as many honest clients in each round as are stated below',
  kind='distributed',
  made_by='clients, each a share of that of the sum',
  z='the sum of the shares of the fewest clients',
  seen='all that is released, but neither what single clients send nor the noise that '
  'they add',
  principle='Each client clips its update, and adds a share of the {noise} noise that '
  'is drawn anew in each round. What is released is the sum of what they send, in '
  'which as many shares make the noise as there are clients.',
  assumptions=(
    'At least {min_clients} honest clients report in each round: each adds its share '
    'of the noise and keeps it to itself. A round with fewer is not released',
    'A secure sum, or a server that looks at nothing but the sum: a single share hides '
    'little (what else holds, below)',
    'A round that is run again has other noise, so it is another release, and counts '
    'as one more participation of its clients',
  ),
)
_LOCAL = SiteTerms(
  'each client adds all that hides it from the server as well: --noise_multiplier is '
  "that of one client's noise",
  'local differential privacy: each client clips its update and adds noise of its own '
  'before it sends anything, and the guarantee is of what it sends, towards everybody; '
  'neither the server nor other clients are trusted',
  kind='local',
  made_by='each client, for what it sends',
  z='the noise of one client',
  seen='all that a client sends',
  outputs='everything that a client sends: the adversary may be the server, and see '
  "each client's noised update of every round, so all that is computed from them as "
  'well, such as the models',
  principle='Each client clips its update, and adds {noise} noise of its own before it '
  'sends anything, drawn anew in each round. The server adds up what clients send.',
  assumptions=(
    'Each client adds its noise itself: the guarantee of a client rests on no other',
    'What a client sends again with other noise, as in a round that is run again, is '
    'another report, and counts as one more participation',
  ),
)
_CLIENTS_AND_SERVER = SiteTerms(
  'as local, and the server adds noise of --server_noise_multiplier to the sum, as '
  'NbAFL does (arXiv:1911.00222)',
  'local differential privacy, with noise of the server on top: each client clips its '
  'update and adds noise of its own before it sends anything, and the guarantee is of '
  'what it sends, towards everybody, for which nobody else is trusted. The server adds '
  'more noise to the sum: for those who see no more than sums there is more privacy '
  '(what else holds), and they have to trust it with that noise',
  kind='local',
  made_by='each client, for what it sends, and the server, on the sum',
  z='the noise of one client',
  seen=_LOCAL.seen,
  outputs=_LOCAL.outputs,
  principle='Each client clips its update, and adds {noise} noise of its own before it '
  'sends anything, drawn anew in each round. The server adds up what clients send, and '
  'adds {noise} noise of its own to the sum.',
  assumptions=(
    *_LOCAL.assumptions,
    'Noise of the server hides a client in the sums alone: the guarantee does not have '
    'it',
  ),
)
_LOCAL_APPROXIMATE = SiteTerms(
  'the server adds Gaussian noise of the same squared error as that of local, quickly; '
  'a simulation without a guarantee',
  'none: the server adds noise of the same squared error that noise of each client '
  'would have, which is a simulation of local differential privacy and gives none',
  made_by='the server, as loud as that of clients would be',
  z='the noise that one client would add',
  principle="The server adds up the clipped updates of a round's clients and adds "
  'Gaussian noise that is as loud as {noise} noise of each client would be in the sum: '
  'quick to simulate, and known to nobody as noise of theirs.',
)
SITES = {
  sites.SERVER.name: _SERVER,
  sites.CLIENTS.name: _CLIENTS,
  sites.LOCAL.name: _LOCAL,
  sites.CLIENTS_AND_SERVER.name: _CLIENTS_AND_SERVER,
  sites.LOCAL_APPROXIMATE.name: _LOCAL_APPROXIMATE,
}


def describe(option: str) -> str:
  """What is said of an option of noise or its site, for the help of its flag.

  Example:
    >>> describe('max_clients')[:39]
    'For skellam and discrete_gaussian: how '
  """
  return f'For {sites.having(option, " and ")}: {OPTIONS[option].help}.'

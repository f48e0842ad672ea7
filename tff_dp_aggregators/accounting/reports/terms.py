"""What reports and programs call accountants, kinds of noise and places of noise.

Numbers carry no words (`accountants`, `noises`, `sites`); here is what is said of each,
by name. Of an accountant that was registered from outside its name is said.
"""

from typing import NamedTuple, Optional

from tff_dp_aggregators.accounting import accountants
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


class SiteTerms(NamedTuple):
  """What is said of a place where noise is made.

  Attributes:
    help: What that is, for the help of `--noise_site`.
    setting: Who has to be trusted with what.
    kind: Of differential privacy, if it is not that of the server's noise.
    outputs: What the adversary sees.
  """

  help: str
  setting: str
  kind: str = ''
  outputs: str = (
    'all intermediate models: the adversary may see the noised aggregate of every '
    'round and everything computed from it, so the last model as well'
  )


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
)
_LOCAL = SiteTerms(
  'each client adds all that hides it from the server as well: --noise_multiplier is '
  "that of one client's noise",
  'local differential privacy: each client clips its update and adds noise of its own '
  'before it sends anything, and the guarantee is of what it sends, towards everybody; '
  'neither the server nor other clients are trusted',
  kind='local',
  outputs='everything that a client sends: the adversary may be the server, and see '
  "each client's noised update of every round, so all that is computed from them as "
  'well, such as the models',
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
  outputs=_LOCAL.outputs,
)
_LOCAL_APPROXIMATE = SiteTerms(
  'the server adds Gaussian noise of the same squared error as that of local, quickly; '
  'a simulation without a guarantee',
  'none: the server adds noise of the same squared error that noise of each client '
  'would have, which is a simulation of local differential privacy and gives none',
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

"""The workers of a training: which are taken, and which refused, in which words."""

import os

import pytest
from absl import flags

from experiments.options import workers as options
from tests.workers import certificates
from tff_dp_aggregators.workers import group


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """Certificate, key and authority of a coordinator."""
  authority = certificates.Authority(tmp_path_factory.mktemp('group'), 'group')
  return (*authority.sign('coordinator', usage=certificates.CLIENT), authority.path)


def _of_arguments(addresses, **others):
  return group.Workers(addresses, **others)


_FLAGS = {
  **{name: f'workers_{name}' for name in ('certificate', 'key', 'authority')},
  **{name: f'worker_{name}' for name in ('timeout_seconds', 'patience_seconds')},
}


def _of_flags(addresses, **others):
  values = flags.FlagValues()
  options.define(values)
  given = {'workers': addresses}
  given.update({_FLAGS.get(name, name): value for name, value in others.items()})
  values(['program', *(f'--{name}={value}' for name, value in given.items())])
  return options.from_flags(values)


@pytest.fixture(params=['arguments', 'flags'])
def said(request):
  """What makes workers, and what their attributes are called in messages."""
  names = group.Names()
  if request.param == 'arguments':
    return _of_arguments, names
  return _of_flags, group.Names(*(f'--{name}' for name in options.NAMES))


@pytest.mark.parametrize(
  'text, parsed',
  [
    ('127.0.0.1:8470', [('127.0.0.1', 8470)]),
    (' 127.0.0.1:1, localhost:65535', [('127.0.0.1', 1), ('localhost', 65535)]),
    ('[::1]:8470', [('::1', 8470)]),
    # A port of its own makes it another one.
    ('localhost:8470,localhost:8471', [('localhost', 8470), ('localhost', 8471)]),
  ],
)
def test_addresses(text, parsed, said):
  make, _ = said
  workers = make(text)
  assert (workers.parsed(), workers.num_local) == (parsed, None)
  assert workers.files() is None


@pytest.mark.parametrize('text, number', [('local:1', 1), (' local:1024 ', 1024)])
def test_workers_of_this_machine(text, number, said):
  make, _ = said
  assert make(text).num_local == number


@pytest.mark.parametrize(
  'text, match',
  [
    ('somewhere', "='somewhere' has no port; give host:port, such as 'local:4'"),
    ('local', "='local' has no port; give"),
    ('local:four', "='local:four' has no port; give"),
    ('host:8470,', "='host:8470,' has an empty address; give"),
    ('', "='' has an empty address; give"),
    ('::1:8470', r"='::1:8470' has more than one colon .*; IPv6 is \[address\]:port"),
    ('http://host:80', 'more than one colon'),
    ('localhost:0', ': 0 is no port; they are 1 to 65535'),
    ('localhost:65536', ': 65536 is no port'),
    ('local:0', "='local:0': give 1 to 1024 of them"),
    ('local:1025', "='local:1025': give 1 to 1024"),
    ('localhost:8470, localhost:8470', 'has an address twice'),
    ('local:2,localhost:8470', '=local stands for no address'),
    ('no-such-host.invalid:8470', '=no-such-host.invalid stands for no address'),
  ],
)
def test_what_is_none_is_refused(text, match, said):
  make, names = said
  with pytest.raises(ValueError, match=f'^{names.addresses}.*{match}'):
    make(text)


@pytest.mark.parametrize('host', ['10.0.0.5', '0.0.0.0', '2001:db8::5'])
def test_other_machines_without_certificates_are_refused(host, said):
  make, names = said
  target = f'[{host}]:8470' if ':' in host else f'{host}:8470'
  with pytest.raises(ValueError) as error:
    make(f'localhost:1,{target}')
  message = str(error.value)
  assert message.startswith(f'{names.addresses}={host} is not on this machine alone')
  three = f'{names.certificate}, {names.key} and {names.authority}, by which'
  assert f'Give {three} coordinator and workers' in message
  assert f'or {names.trusted_network}, if nobody else is on' in message
  assert make(target, trusted_network=True).parsed() == [(host, 8470)]


@pytest.mark.parametrize(
  'text', ['local:2', '127.0.0.1:8470', 'localhost:8470,[::1]:8471']
)
def test_a_trusted_network_is_refused_where_it_allows_nothing(text, said):
  make, names = said
  with pytest.raises(ValueError) as error:
    make(text, trusted_network=True)
  message, trusted = str(error.value), names.trusted_network
  assert message.startswith(f'{names.addresses}={text!r} is on this machine alone')
  assert f'leave out {trusted}, or give such an address' in message
  # One worker elsewhere is enough, also by a name that stands for nothing yet.
  for other in ('10.0.0.5:8470', 'no-such-host.invalid:8470'):
    assert make(f'localhost:1,{other}', trusted_network=True).trusted_network


def test_a_trusted_network_is_refused_beside_certificates(files, said):
  make, names = said
  certificate, key, authority = files
  with pytest.raises(ValueError) as error:
    make(
      '10.0.0.5:8470',
      certificate=certificate,
      key=key,
      authority=authority,
      trusted_network=True,
    )
  message, trusted = str(error.value), names.trusted_network
  assert message.startswith(f'{trusted} is for connections without certificates')
  three = f'{names.certificate}, {names.key} and {names.authority} both sides'
  assert three in message and f'leave out {trusted}, or these three' in message


def test_flags_are_called_what_a_command_line_has():
  with pytest.raises(ValueError) as error:
    _of_flags('10.0.0.5:8470')
  three = '--workers_certificate, --workers_key and --workers_authority'
  assert three in str(error.value) and '; or --trusted_network,' in str(error.value)


def test_with_certificates_other_machines_may_be_named(files, said):
  make, _ = said
  certificate, key, authority = files
  kwargs = {'certificate': certificate, 'key': key, 'authority': authority}
  workers = make('10.0.0.5:8470', **kwargs)
  assert workers.files().channel() is not None
  # A name may come to stand for workers later, as that of a service does.
  assert make('no-such-host.invalid:8470', **kwargs).parsed()


def test_files_are_called_what_the_user_called_them(files, said):
  make, names = said
  certificate, key, authority = files
  with pytest.raises(ValueError, match=f'^{names.certificate} without {names.key} and'):
    make('10.0.0.5:8470', certificate=certificate)
  with pytest.raises(ValueError, match=f'^{names.key}=/no/key cannot be read'):
    make('10.0.0.5:8470', certificate=certificate, key='/no/key', authority=authority)
  with pytest.raises(ValueError, match=f'^{names.authority}=.*is no certificate'):
    make('10.0.0.5:8470', certificate=certificate, key=key, authority=key)
  os.chmod(key, 0o644)
  try:
    with pytest.raises(ValueError, match=f'^{names.key}=.*mode 0644'):
      make('10.0.0.5:8470', certificate=certificate, key=key, authority=authority)
  finally:
    os.chmod(key, 0o600)


def test_a_certificate_that_no_worker_would_take_is_refused(tmp_path, said):
  make, names = said
  ours = certificates.Authority(tmp_path, 'ours')
  certificate, key = ours.sign('worker', usage=certificates.SERVER)
  with pytest.raises(ValueError, match=f'^{names.certificate}=.*as that of a coord'):
    make('10.0.0.5:8470', certificate=certificate, key=key, authority=ours.path)
  other = certificates.Authority(tmp_path, 'other')
  certificate, key = ours.sign('coordinator', usage=certificates.CLIENT)
  with pytest.raises(ValueError, match=f'by {names.authority}=.*unable to get local'):
    make('10.0.0.5:8470', certificate=certificate, key=key, authority=other.path)


def test_workers_of_this_machine_need_no_certificate(files, said):
  make, names = said
  certificate, key, authority = files
  with pytest.raises(ValueError, match=f"^{names.addresses}='local:2' are on this"):
    make('local:2', certificate=certificate, key=key, authority=authority)


@pytest.mark.parametrize('name', ['timeout_seconds', 'patience_seconds'])
@pytest.mark.parametrize('value', [0, -1.0, float('inf'), float('nan')])
def test_times_are_positive(name, value, said):
  make, names = said
  called = getattr(names, name)
  with pytest.raises(ValueError, match=f'^{called} is .*; it must be a positive'):
    make('local:1', **{name: value})


def test_types():
  with pytest.raises(TypeError, match="^workers is a int, not a text, such as 'local:"):
    group.Workers(4)
  with pytest.raises(TypeError, match='^timeout_seconds must be a number, got None'):
    group.Workers('local:1', timeout_seconds=None)


def test_flags_without_workers():
  values = flags.FlagValues()
  options.define(values)
  values(['program'])
  assert options.from_flags(values) is None
  values(['program', '--trusted_network'])
  with pytest.raises(ValueError, match='^--trusted_network is for --workers, which is'):
    options.from_flags(values)

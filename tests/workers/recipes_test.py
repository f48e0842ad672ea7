"""What docs/several_machines has for containers and clusters fits together.

Claims:

* The script makes certificates that each side takes for what they are, and no other.
* Every command of compose.yaml and of Kubernetes' files is one that the programs take,
  with the files that are mounted, at the name and port where workers listen.
* Selectors, ports, volumes, secrets and images mean each other; nothing runs as root
  or may write but to volumes.
* The image is made of files that are there, and has what the commands need.
"""

import functools
import json
import re
import shutil
import stat
import subprocess

import pytest
import yaml
from absl import flags

from experiments import settings as settings_lib
from experiments import worker as worker_program
from tests.workers import supervised
from tff_dp_aggregators.workers import credentials

FOLDER = supervised.ROOT / 'docs' / 'several_machines'
CLUSTER = FOLDER / 'kubernetes'
_SCRIPT = FOLDER / 'make_certificates.sh'
_USER = 10001

needs_openssl = pytest.mark.skipif(
  shutil.which('openssl') is None, reason='openssl, which makes them, is not here'
)


def make_certificates(folder, *names, **environment):
  """What the script says, and its exit code."""
  return subprocess.run(
    ['sh', str(_SCRIPT), str(folder), *names],
    env={'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', **environment},
    capture_output=True,
    text=True,
    timeout=60,
  )


@functools.cache
def _read(name):
  return yaml.safe_load((FOLDER / name).read_text('utf-8'))


# Of which the training has one, besides that of workers.
_POLICY, _OF_TRAINING = 'NetworkPolicy', 'tff-dp-coordinator'


@functools.cache
def _objects():
  """Kubernetes' objects, as `_by_kind` has them."""
  resources = _read('kubernetes/kustomization.yaml')['resources']
  return _by_kind(_read(f'kubernetes/{name}') for name in resources)


def _by_kind(objects):
  """Objects by kind; the training's network policy by its name."""
  found = {}
  for each in objects:
    key = each['kind']
    if (key, each['metadata']['name']) == (_POLICY, _OF_TRAINING):
      key = _OF_TRAINING
    assert key not in found
    found[key] = each
  return found


@pytest.fixture(scope='module')
def certificates(tmp_path_factory):
  """Those that the script makes for both recipes."""
  folder = tmp_path_factory.mktemp('certificates') / 'of the group'
  result = make_certificates(folder, 'worker', 'workers', '10.0.0.5', '2001:db8::5')
  assert (result.returncode, result.stderr) == (0, ''), result
  return folder


def _files(folder, role):
  return credentials.Files(
    *(str(folder / name) for name in (f'{role}.crt', f'{role}.key', 'group.crt'))
  )


@needs_openssl
def test_the_certificates_are_for_their_side_alone(certificates):
  worker, coordinator = (
    _files(certificates, each) for each in ('worker', 'coordinator')
  )
  assert worker.server() is not None and coordinator.channel() is not None
  with pytest.raises(credentials.CredentialsError, match='that of a coordinator'):
    worker.channel()
  with pytest.raises(credentials.CredentialsError, match='that of a worker'):
    coordinator.server()
  modes = {
    path.name: stat.S_IMODE(path.stat().st_mode) for path in certificates.iterdir()
  }
  public = {f'{name}.crt': 0o644 for name in ('group', 'worker', 'coordinator')}
  secret = {f'{name}.key': 0o600 for name in ('group', 'worker', 'coordinator')}
  assert modes == {**public, **secret}


def _names_of(path):
  text = subprocess.run(
    ['openssl', 'x509', '-in', path, '-noout', '-ext', 'subjectAltName'],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  return text.split('\n')[1].strip()


@needs_openssl
def test_the_script_makes_more_certificates_of_the_same_group(certificates, tmp_path):
  folder = tmp_path / 'copy'
  shutil.copytree(certificates, folder)
  assert _names_of(folder / 'worker.crt') == (
    'DNS:worker, DNS:workers, IP Address:10.0.0.5, IP Address:2001:DB8:0:0:0:0:0:5'
  )
  before = {path.name: path.read_bytes() for path in folder.iterdir()}
  assert make_certificates(folder, 'elsewhere', DAYS='2').returncode == 0
  same = {
    path.name for path in folder.iterdir() if path.read_bytes() == before[path.name]
  }
  assert same == {'group.crt', 'group.key'}
  assert _names_of(folder / 'worker.crt') == 'DNS:elsewhere'
  assert _files(folder, 'worker').server() is not None
  # Those that are in use go on.
  for side in ('worker', 'coordinator'):
    shutil.copy(certificates / f'{side}.crt', folder)
    shutil.copy(certificates / f'{side}.key', folder)
  assert _files(folder, 'coordinator').channel() is not None
  ends = ['openssl', 'x509', '-in', folder / 'worker.crt', '-noout', '-checkend']
  assert subprocess.run([*ends, str(89 * 86400)]).returncode == 0
  assert subprocess.run([*ends, str(91 * 86400)]).returncode == 1


@needs_openssl
def test_the_script_makes_no_other_group_where_one_is(certificates, tmp_path):
  folder = tmp_path / 'copy'
  shutil.copytree(certificates, folder)
  (folder / 'group.key').unlink()  # Kept elsewhere, as the page says.
  before = {path.name: path.read_bytes() for path in folder.iterdir()}
  result = make_certificates(folder, 'worker')
  assert result.returncode == 1
  assert 'not group.key, which signs for it' in result.stderr
  assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


@needs_openssl
@pytest.mark.parametrize('name', ['', 'a b', 'a,DNS:b', 'host:8470', '::1;', 'a\nb'])
def test_the_script_refuses_what_is_no_name(name, tmp_path):
  result = make_certificates(tmp_path / 'none', 'good', name)
  assert result.returncode == 2
  assert f"error: '{name}' is no host name and no address." in result.stderr
  assert not (tmp_path / 'none').exists()


def test_the_script_says_how_it_is_used(tmp_path):
  result = make_certificates(tmp_path / 'none')
  assert result.returncode == 2 and 'FOLDER NAME...' in result.stderr


def _worker(arguments, folder):
  """Checks the flags of a worker, as far as it can without its machine."""
  values = flags.FlagValues()
  worker_program.define(values)
  values(['program', *_here(arguments, folder)])
  assert values.address == '0.0.0.0' and not values.trusted_network
  files = credentials.files(values.certificate, values.key, values.authority)
  assert files.server() is not None
  return values


def _coordinator(arguments, folder):
  """The settings of a training."""
  values = flags.FlagValues()
  settings_lib.define(values)
  values(['program', *_here(arguments, folder)])
  settings = settings_lib.from_flags(values)
  assert settings.workers.files().channel() is not None
  assert not settings.workers.trusted_network
  return settings


def _here(arguments, folder):
  """Arguments with the certificates of this machine."""
  return [each.replace('=/certificates/', f'={folder}/') for each in arguments]


def _mounted(arguments):
  """Files of the certificates that arguments name."""
  return {each.partition('=')[2] for each in arguments if '=/certificates/' in each}


def _commented(name):
  """The comment at the beginning of a file."""
  lines = (FOLDER / name).read_text('utf-8').splitlines()
  return '\n'.join(line.lstrip('# ') for line in lines if line.startswith('#'))


def _certified(name):
  """For whom a file says to make certificates."""
  (names,) = re.findall(r'make_certificates\.sh certificates (.+)', _commented(name))
  return names.split()


@needs_openssl
def test_the_containers_of_one_machine(certificates):
  services = _read('compose.yaml')['services']
  program, *arguments = services['worker']['command']
  assert program == 'tff-dp-worker'
  worker = _worker(arguments, certificates)
  program, *of_training = services['coordinator']['command']
  assert program == 'tff-dp-simulate'
  training = _coordinator(of_training, certificates)
  assert training.workers.parsed() == [('worker', worker.port)]
  assert _certified('compose.yaml') == ['worker'] and 'worker' in services
  for service, given in (('worker', arguments), ('coordinator', of_training)):
    mounts = {}
    for volume in services[service]['volumes']:
      source, target, *mode = volume.split(':')
      mounts[target] = mode
      path = (FOLDER / source).resolve()
      assert path == supervised.ROOT / target.lstrip('/')
      if target.startswith('/certificates/'):
        assert mode == ['ro'] and (certificates / path.name).is_file()
    # Run directories, and with them the keys of the noise, are for the training alone.
    runs = set() if service == 'worker' else {'/runs'}
    assert mounts.keys() == _mounted(given) | runs
  assert training.run.run_dir.startswith('/runs/')


def test_containers_may_do_nothing_else():
  content = _read('compose.yaml')
  assert content['networks'] == {'workers': {'internal': True}}
  for service in content['services'].values():
    assert service['read_only'] and service['tmpfs'] == '/tmp'
    assert (service['cap_drop'], service['cap_add']) == (['ALL'], ['SYS_PTRACE'])
    assert service['security_opt'] == ['no-new-privileges:true']
    assert service['user'] == f'${{RUN_AS:-{_USER}:{_USER}}}'
    assert (service['networks'], service['image']) == (['workers'], _image())
    assert 'ports' not in service and 'privileged' not in service
    assert set(service['deploy']['resources']['limits']) == {'cpus', 'memory'}
  worker = content['services']['worker']
  assert _status_file(worker['command']) in worker['healthcheck']['test'][1]
  waiting = content['services']['coordinator']['depends_on']
  assert waiting == {'worker': {'condition': 'service_healthy'}}


def _status_file(arguments):
  (path,) = [
    each.partition('=')[2] for each in arguments if each.startswith('--status_file=')
  ]
  assert path.startswith('/tmp/')  # Which may be written to.
  return path


def test_docker_reads_the_containers(tmp_path):
  command = ['docker', 'compose']
  if (
    shutil.which('docker') is None
    or subprocess.run([*command, 'version'], capture_output=True).returncode
  ):
    pytest.skip('docker compose is not here')
  result = subprocess.run(
    [*command, '-f', FOLDER / 'compose.yaml', 'config', '--format=json'],
    capture_output=True,
    text=True,
    check=True,
  )
  content = json.loads(result.stdout)
  assert content['services'].keys() == {'worker', 'coordinator'}


def _pod(kind):
  pod = _objects()[kind]['spec']['template']
  (container,) = pod['spec']['containers']
  return pod, container


@needs_openssl
def test_the_programs_of_a_cluster(certificates):
  _, worker = _pod('StatefulSet')
  assert worker['command'] == ['tff-dp-worker']
  values = _worker(worker['args'], certificates)
  assert worker['ports'] == [{'name': 'grpc', 'containerPort': values.port}]
  _, coordinator = _pod('Job')
  assert coordinator['command'] == ['tff-dp-simulate']
  training = _coordinator(coordinator['args'], certificates)
  service = _objects()['Service']
  (port,) = service['spec']['ports']
  assert training.workers.parsed() == [(service['metadata']['name'], port['port'])]
  # An address of a service without one of its own is that of a pod, port included.
  assert service['spec']['clusterIP'] == 'None'
  assert (port['port'], port['targetPort']) == (values.port, 'grpc')
  assert _certified('kubernetes/kustomization.yaml') == [service['metadata']['name']]
  assert training.run.run_dir.startswith('/runs/')


def test_selectors_mean_the_pods():
  objects = _objects()
  (worker, _), (coordinator, _) = _pod('StatefulSet'), _pod('Job')
  labels = worker['metadata']['labels']
  assert objects['StatefulSet']['spec']['selector'] == {'matchLabels': labels}
  assert objects['StatefulSet']['spec']['serviceName'] == 'workers'
  assert objects['Service']['spec']['selector'] == labels
  policy = objects[_POLICY]['spec']
  assert policy['podSelector'] == {'matchLabels': labels}
  assert set(policy['policyTypes']) == {'Ingress', 'Egress'} and policy['egress'] == []
  ((rule,), coordinators) = policy['ingress'], coordinator['metadata']['labels']
  assert rule == {
    'from': [{'podSelector': {'matchLabels': coordinators}}],
    'ports': [{'protocol': 'TCP', 'port': 'grpc'}],
  }
  assert coordinators != labels
  assert objects[_OF_TRAINING]['spec'] == {
    'podSelector': {'matchLabels': coordinators},
    'policyTypes': ['Ingress'],
    'ingress': [],
  }


@pytest.mark.parametrize('kind', ['StatefulSet', 'Job'])
def test_volumes_and_secrets_are_those_that_are_used(kind):
  pod, container = _pod(kind)
  volumes = {each['name']: each for each in pod['spec']['volumes']}
  mounts = {each['name']: each for each in container['volumeMounts']}
  assert volumes.keys() == mounts.keys()
  paths = {name: mount['mountPath'] for name, mount in mounts.items()}
  expected = {'certificates': '/certificates', 'tmp': '/tmp'}
  if kind == 'Job':
    expected['runs'] = '/runs'  # And with them the keys of the noise: for it alone.
    claim = volumes['runs']['persistentVolumeClaim']
    assert claim == {
      'claimName': _objects()['PersistentVolumeClaim']['metadata']['name']
    }
  assert paths == expected
  assert volumes['tmp'] == {'name': 'tmp', 'emptyDir': {}}
  # The comment says how the secret is made, of these files and no others.
  secret = volumes['certificates']['secret']
  text = _commented('kubernetes/kustomization.yaml').replace('\\\n', ' ')
  (line,) = re.findall(rf'create secret generic {secret["secretName"]} (.*)', text)
  files = re.findall(r'--from-file=certificates/(\S+)', line)
  assert {f'/certificates/{name}' for name in files} == _mounted(container['args'])
  # The key belongs to root and the pod's group, as `credentials` takes it.
  assert secret['defaultMode'] == 0o440
  assert pod['spec']['securityContext']['fsGroup'] == _USER


@pytest.mark.parametrize('kind', ['StatefulSet', 'Job'])
def test_pods_may_do_nothing_else(kind):
  pod, container = _pod(kind)
  spec = pod['spec']
  context = spec['securityContext']
  assert (context['runAsUser'], context['runAsNonRoot']) == (_USER, True)
  assert context['seccompProfile'] == {'type': 'RuntimeDefault'}
  assert spec['automountServiceAccountToken'] is False
  assert container['securityContext'] == {
    'allowPrivilegeEscalation': False,
    'readOnlyRootFilesystem': True,
    'capabilities': {'drop': ['ALL'], 'add': ['SYS_PTRACE']},
  }
  assert container['resources']['limits']['memory']
  assert container['image'] == _image()
  assert 'hostNetwork' not in spec


def test_probes_read_what_the_worker_writes():
  _, container = _pod('StatefulSet')
  path = _status_file(container['args'])
  assert path in container['livenessProbe']['exec']['command'][2]
  assert container['readinessProbe']['exec']['command'][-1] == path


@pytest.mark.slow
def test_the_commands_of_probes_tell_what_they_should(tmp_path):
  _, container = _pod('StatefulSet')
  path = tmp_path / 'status.json'

  def passes(probe):
    command = container[probe]['exec']['command']
    command = [each.replace('/tmp/status.json', str(path)) for each in command]
    return not subprocess.run(command, stderr=subprocess.DEVNULL).returncode

  assert not passes('livenessProbe') and not passes('readinessProbe')
  with supervised.Worker(f'--status_file={path}') as worker:
    supervised.until(lambda: passes('readinessProbe'))
    assert passes('livenessProbe')
    supervised.stop(worker.binary())
    supervised.until(lambda: not passes('readinessProbe'))
    assert passes('livenessProbe')
    supervised.stop(worker.process)
    subprocess.run(['touch', '-d', '2 minutes ago', path], check=True)
    assert not passes('livenessProbe')


def test_a_training_that_is_cut_off_goes_on():
  job = _objects()['Job']['spec']
  assert job['backoffLimit'] > 0
  assert job['template']['spec']['restartPolicy'] == 'Never'  # Or no rule may be.
  moved, wrong = job['podFailurePolicy']['rules']
  assert (moved['action'], wrong['action']) == ('Ignore', 'FailJob')
  assert wrong['onExitCodes'] == {
    'containerName': _pod('Job')[1]['name'],
    'operator': 'In',
    'values': [2],
  }


def test_all_files_of_the_cluster_are_used():
  used = {*_read('kubernetes/kustomization.yaml')['resources'], 'kustomization.yaml'}
  assert {path.name for path in CLUSTER.iterdir()} == used


def test_kubectl_puts_the_files_together():
  if shutil.which('kubectl') is None:
    pytest.skip('kubectl is not here')
  result = subprocess.run(
    ['kubectl', 'kustomize', CLUSTER], capture_output=True, text=True, timeout=60
  )
  assert result.returncode == 0, result.stderr
  found = _by_kind(yaml.safe_load_all(result.stdout))
  assert found.keys() == _objects().keys()
  for kind in ('StatefulSet', 'Job'):
    (container,) = found[kind]['spec']['template']['spec']['containers']
    assert container['image'] == f'{_image()}:latest'
    found[kind]['spec']['template']['spec']['containers'][0]['image'] = _image()
  assert found == _objects()


def _image():
  (image,) = re.findall(r'docker build .* -t (\S+) \.', _commented('Dockerfile'))
  (named,) = _read('kubernetes/kustomization.yaml')['images']
  assert named['name'] == image
  return image


def test_the_image_is_made_of_what_is_there():
  text = (FOLDER / 'Dockerfile').read_text('utf-8').replace('\\\n', ' ')
  lines = [line.split() for line in text.splitlines() if line and line[0] != '#']
  bases = [line[1] for line in lines if line[0] == 'FROM']
  assert bases == ['python:3.11-bookworm', 'python:3.11-slim-bookworm']
  copied = [line[1:] for line in lines if line[0] == 'COPY']
  assert copied == [
    ['requirements.lock', '.'],
    ['.', '.'],
    ['--from=build', '/opt/tff_dp', '/opt/tff_dp'],
  ]
  assert (supervised.ROOT / 'requirements.lock').is_file()
  assert ['USER', f'{_USER}:{_USER}'] in lines
  assert f'--uid {_USER} ' in text
  ignored = (FOLDER / 'Dockerfile.dockerignore').read_text('utf-8').split('\n')
  assert {'.venv', 'certificates', 'runs'} <= set(ignored)
  assert '.git' not in ignored  # Reports name the commit.


def test_no_certificate_of_a_user_is_kept():
  ignored = (supervised.ROOT / '.gitignore').read_text('utf-8').splitlines()
  assert '/certificates/' in ignored and '/runs/' in ignored


def test_the_image_has_the_commands():
  setup = (supervised.ROOT / 'setup.py').read_text('utf-8')
  commands = [_pod(kind)[1]['command'][0] for kind in ('StatefulSet', 'Job')]
  for command in commands:
    assert f"'{command} = " in setup

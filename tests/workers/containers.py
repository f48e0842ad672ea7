"""A container as Kubernetes makes it of a pod's description, without its machinery.

What a description asks for is done by the kernel here as there: another user, a root
directory that nobody can write to, mounts, capabilities, no new privileges, and
processes of its own, the first of which is the program. There is no filter of system
calls.
"""

import os
import shutil
import subprocess
import sys

import pytest

from tests.workers import supervised

# Becomes the program: $1 is the user, $2 the capabilities, then mounts as
# 'source:target:mode' up to '--', then the command.
_SCRIPT = """
set -eu
user=$1 capabilities=$2
shift 2
root=$(mktemp -d)
mount -t tmpfs tmpfs "$root"
while [ "$1" != -- ]; do
  source=${1%%:*} mode=${1##*:}
  target=${1#*:}
  target=$root${target%:*}
  shift
  mkdir -p "$target"
  case $source in
    tmpfs) mount -t tmpfs -o mode=1777 tmpfs "$target" ;;
    proc) mount -t proc proc "$target" ;;
    *) mount --bind "$source" "$target"
      if [ "$mode" = ro ]; then mount -o remount,bind,ro "$target"; fi ;;
  esac
done
shift
for each in /bin /lib /lib64 /sbin; do
  if [ -L "$each" ]; then ln -s "$(readlink "$each")" "$root$each"; fi
done
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups \
  --no-new-privs --bounding-set="$capabilities" --inh-caps=-all "$@"
"""
_TOOLS = ('unshare', 'mount', 'chroot', 'setpriv')


def command(pod, volumes):
  """What runs a pod's container here.

  Args:
    pod: The pod's description: what a template has below `spec`.
    volumes: Folder of each volume; without one, it is an `emptyDir`.
  """
  (container,) = pod['containers']
  rights, context = container['securityContext'], pod['securityContext']
  # What the script does in any case.
  assert rights['readOnlyRootFilesystem'] and not rights['allowPrivilegeEscalation']
  assert rights['capabilities']['drop'] == ['ALL']
  assert context['runAsUser'] == context['runAsGroup'] == context['fsGroup']
  added = [f'+{each.lower()}' for each in rights['capabilities'].get('add', ())]
  mounts = []
  for mount in container['volumeMounts']:
    source = volumes.get(mount['name'], 'tmpfs')
    mode = 'ro' if mount.get('readOnly') else 'rw'
    mounts.append(f'{source}:{mount["mountPath"]}:{mode}')
  # After them, as a checkout may be in /tmp, which they hide.
  mounts += [f'{each}:{each}:ro' for each in _image()]
  mounts += ['proc:/proc:rw', '/dev:/dev:rw']
  return (
    *('unshare', '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', _SCRIPT),
    *('sh', str(context['runAsUser']), ','.join(['-all', *added]), *mounts, '--'),
    *('env', '-i', f'PATH={sys.prefix}/bin:/usr/bin:/bin', 'HOME=/tmp'),
    *(*container['command'], *container['args']),
  )


def _image():
  """Folders with what the programs need, as an image has them."""
  folders = {'/usr', '/etc', sys.prefix, sys.base_prefix, str(supervised.ROOT)}
  folders.update(
    each for each in ('/lib', '/lib64', '/bin') if not os.path.islink(each)
  )
  # Those inside of others come with them, or after them.
  return sorted(folders)


def need():
  """Skips the test where none can be made."""
  missing = [each for each in _TOOLS if shutil.which(each) is None]
  if os.getuid() != 0 or missing:
    pytest.skip(f'containers are made by root, with {", ".join(missing or _TOOLS)}')
  tried = subprocess.run(
    ['unshare', '--mount', '--pid', '--fork', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'],
    capture_output=True,
    text=True,
  )
  if tried.returncode:
    pytest.skip(f'no container can be made here: {tried.stderr}')

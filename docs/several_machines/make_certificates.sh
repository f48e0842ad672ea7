#!/bin/sh
# Makes the certificates by which a training and its workers know each other.
#
#     docs/several_machines/make_certificates.sh FOLDER NAME...
#
# Each NAME is one by which the training calls workers in --workers=NAME:PORT: a host
# name or an address. Leaves in FOLDER:
#
#     group.crt                       whom all trust: on every machine
#     worker.crt, worker.key          on the machines of workers
#     coordinator.crt, coordinator.key  on the machine of the training
#     group.key                       signs new ones: on none of these machines
#
# Run again with the same FOLDER, it makes new certificates of the same group: for other
# names, or before the old ones end. Whoever has one of the two pairs may run code on the
# workers (coordinator), or be given the model and the data (worker).
#
# Environment: DAYS, how long the certificates are valid, 90 if not set; openssl 1.1.1 or
# later.
set -eu

if [ $# -lt 2 ]; then
  echo "usage: $0 FOLDER NAME..." >&2
  exit 2
fi
folder=$1
shift
names=
for name in "$@"; do
  kind=DNS
  case $name in
    *:*[!0-9A-Fa-f:.]* | *[!0-9A-Fa-f:.]*:* | *[!0-9A-Za-z:.*-]* | '')
      echo "error: '$name' is no host name and no address." >&2
      exit 2
      ;;
    *:*) kind=IP ;; # IPv6.
    *[!0-9.]*) ;;
    *) kind=IP ;;
  esac
  names=${names:+$names,}$kind:$name
done

umask 077
mkdir -p "$folder"
cd "$folder"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Makes a key, and what an authority is to sign, of a name.
request() {
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
    -keyout "$scratch/$1.key" -out "$scratch/$1.csr" -subj "/CN=$2" 2>"$scratch/said" ||
    { cat "$scratch/said" >&2; exit 1; }
}

# Signs it with further arguments, and what is in a file of extensions.
sign() {
  signed=$1
  shift
  openssl x509 -req -in "$scratch/$signed.csr" -out "$scratch/$signed.crt" -sha256 \
    -extfile "$scratch/$signed.ext" "$@" 2>"$scratch/said" ||
    { cat "$scratch/said" >&2; exit 1; }
}

if [ -e group.crt ] && [ ! -e group.key ]; then
  echo "$folder has the certificate of a group and not group.key, which signs for it." \
    'Put that back to go on with the group; for a new one give another folder.' >&2
  exit 1
fi
if [ ! -e group.key ]; then
  request group 'workers of a training'
  printf '%s\n' 'basicConstraints=critical,CA:true,pathlen:0' \
    'keyUsage=critical,keyCertSign' 'subjectKeyIdentifier=hash' >"$scratch/group.ext"
  sign group -signkey "$scratch/group.key" -days 3650
  mv "$scratch/group.crt" "$scratch/group.key" .
fi

# A certificate of the group: its name, what it is for, and its names.
certificate() {
  request "$1" "$1"
  printf '%s\n' 'basicConstraints=critical,CA:false' \
    'keyUsage=critical,digitalSignature' "extendedKeyUsage=$2" \
    'authorityKeyIdentifier=keyid' ${3:+"subjectAltName=$3"} >"$scratch/$1.ext"
  serial=0x$(openssl rand -hex 16)
  sign "$1" -CA group.crt -CAkey group.key -set_serial "$serial" -days "${DAYS:-90}"
}

certificate worker serverAuth "$names"
certificate coordinator clientAuth ''
for each in worker coordinator; do
  mv "$scratch/$each.crt" "$scratch/$each.key" .
done
chmod 644 group.crt worker.crt coordinator.crt
echo "Made in $folder, for $*: group.crt, worker.crt, worker.key, coordinator.crt," \
  "coordinator.key. Keep group.key where no training runs."

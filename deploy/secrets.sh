#!/bin/sh
# Make the secrets of compose.yaml: a certificate for the servers, and a password for each user of roles.conf.
#
#   sh deploy/secrets.sh [FOLDER]       # default: deploy/secrets; needs openssl
#
# FOLDER then has
#   ca.pem                      whom clients trust
#   server.pem, server.key      the servers' certificate, for nats-1, nats-2, nats-3 and this machine
#   servers.env                 all passwords, for the servers alone
#   nats/context/USER.json      a context of the `nats` CLI and of gangline for each user
#
# Everything lasts ten years. To replace it, remove FOLDER, run this again, and
# `docker compose up --wait --force-recreate`.

set -eu
umask 077
roles="$(cd "$(dirname "$0")" && pwd)/roles.conf"
folder="${1:-$(dirname "$0")/secrets}"
if [ -e "$folder" ]; then
  echo "$folder exists: remove it first if you want other passwords and certificates" >&2
  exit 1
fi
mkdir -p "$(dirname "$folder")"
folder="$(cd "$(dirname "$folder")" && pwd)/$(basename "$folder")"
new="$folder.new.$$"
mkdir "$new"
trap 'rm -rf "$new"' EXIT

# -- certificates: nobody keeps the authority's key, so that no further certificate can be made with it.

cat > "$new/openssl.cnf" <<'END'
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:nats-1, DNS:nats-2, DNS:nats-3, DNS:localhost, IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END

run_openssl() {
  openssl "$@" 2> "$new/openssl.log" || {
    cat "$new/openssl.log" >&2
    exit 1
  }
}

cd "$new"
for name in ca server; do
  run_openssl ecparam -name prime256v1 -genkey -noout -out "$name.key"
done
run_openssl req -x509 -new -sha256 -config openssl.cnf -extensions authority -days 3650 \
  -subj "/CN=Gangline compose authority" -key ca.key -out ca.pem
run_openssl req -new -sha256 -config openssl.cnf -subj "/CN=nats" -key server.key -out server.csr
run_openssl x509 -req -sha256 -days 3650 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
  -extfile openssl.cnf -extensions server -out server.pem
rm -f ca.key ca.srl server.csr openssl.cnf openssl.log

# -- passwords: with a letter in front, since nats-server would read some as a number.

mkdir -p nats/context
urls="tls://127.0.0.1:${NATS_PORT_1:-4222},tls://127.0.0.1:${NATS_PORT_2:-4223},tls://127.0.0.1:${NATS_PORT_3:-4224}"
sed -n 's/.*{ user: \([A-Za-z0-9_-]*\), password: \$\([A-Z0-9_]*\).*/\1 \2/p' "$roles" > users
if [ ! -s users ]; then
  echo "$roles has no users with passwords: write it with \`gangline roles\`" >&2
  exit 1
fi
while read -r user variable; do
  password="p$(openssl rand -hex 24)"
  echo "$variable=$password" >> servers.env
  cat > "nats/context/$user.json" <<END
{
  "url": "$urls",
  "user": "$user",
  "password": "$password",
  "inbox_prefix": "_INBOX.$user",
  "ca": "$folder/ca.pem"
}
END
done < users
rm users

# Processes in containers read single files of it under other user ids; on this machine the folder keeps others out.
chmod a+r ./*.* nats/context/*
cd "$folder/.."
mv "$new" "$folder"
echo "made $folder"

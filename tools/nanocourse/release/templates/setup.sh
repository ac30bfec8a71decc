#!/usr/bin/env bash
# Gradescope runs this once, as root and with network, when it builds the image. Nothing is fetched when work is graded.
set -euo pipefail
source="$(cd "$(dirname "$0")" && pwd)"
venv="${NANOINFER_VENV:-/opt/nanoinfer}"

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || { apt-get update && apt-get install -y python3 python3-venv; }
    command -v bwrap >/dev/null || { apt-get update && apt-get install -y bubblewrap; } ||
        echo "setup.sh: bubblewrap cannot be installed: the other layers of isolation must do" >&2
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "setup.sh: this image's python3 is older than 3.10: choose a newer Ubuntu in the autograder's settings" >&2
    exit 1
}
python3 -m venv "$venv"
cd "$source"
"$venv/bin/python" -m pip install --no-cache-dir -r requirements.txt
chmod -R go-rwX "$source"  # the secret is in here; learners' code runs under another user
chmod -R go+rX "$venv"     # which must be able to run Python
# A worker imports our packages before it becomes that user, and then cannot read the solutions in them.
"$venv/bin/python" -c 'from nanocourse.grade.isolation.policy import own_sources; print(*own_sources(), sep="\0", end="")' |
    xargs -0 chmod -R go-rwx

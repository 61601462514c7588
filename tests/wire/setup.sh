#!/usr/bin/env bash
# Installs what package-lock.json names, unless it is installed already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

done_for=node_modules/.belljar-lock
if cmp --silent package-lock.json "$done_for"; then
    exit 0
fi
npm ci --no-progress
cp package-lock.json "$done_for"

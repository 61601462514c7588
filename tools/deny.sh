#!/usr/bin/env bash
# Checks licences, sources and banned crates (deny.toml), installing cargo-deny into .cache/ once.
# The advisory database is not asked: it is fetched from a host that a build must not depend on.
set -euo pipefail

DENY_VERSION=0.20.2

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/.cache/deny
if [ "$("$cache/bin/cargo-deny" --version 2>/dev/null)" != "cargo-deny $DENY_VERSION" ]; then
    echo "deny: installing cargo-deny $DENY_VERSION into .cache/deny (once, a few minutes)" >&2
    mkdir -p "$root/.cache"
    cargo install --quiet --locked --root "$cache" --version "$DENY_VERSION" cargo-deny || {
        echo "deny: error: cargo-deny did not build; cargo's output is above" >&2
        exit 1
    }
fi
cd "$root"
exec "$cache/bin/cargo-deny" --locked check --hide-inclusion-graph bans licenses sources

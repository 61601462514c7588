#!/usr/bin/env bash
# Builds every guest from source into target/guests/<name>.wasm. Run tools/setup-guests.sh first.
# A guest whose sources did not change is not built again, and its file keeps its time.
set -euo pipefail

RUST_GUESTS=(ledger ledger-v2 hostile)
# Folders of guests/ whose app.py is an agent in the typed world.
PYTHON_GUESTS=(ledger-py)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${BELLJAR_GUEST_CACHE:-$root/.cache/guests}
out=$root/target/guests

die() { printf 'build-guests: error: %s\n' "$*" >&2; exit 1; }

[ -f "$cache/env.sh" ] || die "the guest toolchains are not set up; run 'just setup-guests'"
# shellcheck disable=SC1091
. "$cache/env.sh"

mkdir -p "$out" "$root/target/guests-build"
# Tests and people may build at the same time; cargo locks for itself, the copying below does not.
exec 9>"$root/target/guests-build/lock"
flock 9

# Puts a built file in its place at once, or leaves the one there when it is the same.
place() {
    cmp -s "$1" "$out/$2.wasm" && return 0
    cp "$1" "$out/$2.wasm.new"
    mv "$out/$2.wasm.new" "$out/$2.wasm"
    printf 'build-guests: %s.wasm (%s bytes)\n' "$2" "$(wc -c <"$out/$2.wasm")" >&2
}

build_rust() {
    local packages=() guest
    for guest in "${RUST_GUESTS[@]}"; do packages+=(-p "$guest"); done
    (
        # A host build that calls this (clippy, a test) must not lend its flags to another target.
        unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CARGO_BUILD_TARGET
        cd "$root/guests"
        "$GUEST_CARGO" build --quiet --release --locked --target wasm32-wasip2 \
            --target-dir "$root/target/guests-build" "${packages[@]}"
    ) || die "a Rust guest did not build (cargo's output is above)"
    for guest in "${RUST_GUESTS[@]}"; do
        place "$root/target/guests-build/wasm32-wasip2/release/${guest//-/_}.wasm" "$guest"
    done
}

build_python() {
    local guest=$1 dir=$root/guests/$1 stamp=$root/target/guests-build/$1.stamp sum log
    sum=$(
        cd "$root"
        { sha256sum wit/*.wit "guests/$guest"/*.py tools/build-guests.sh; echo "$GUEST_COMPONENTIZE_PY"; } | sha256sum
    )
    [ -f "$out/$guest.wasm" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ] && return 0
    log=$root/target/guests-build/$guest.log
    rm -f "$stamp"
    (
        cd "$dir"
        "$GUEST_COMPONENTIZE_PY" --wit-path "$root/wit" --world agent \
            componentize app --output "$root/target/guests-build/$guest.wasm"
    ) >"$log" 2>&1 || { cat "$log" >&2; die "$guest did not build (componentize-py's output is above)"; }
    place "$root/target/guests-build/$guest.wasm" "$guest"
    printf '%s\n' "$sum" >"$stamp"
}

build_rust
for guest in "${PYTHON_GUESTS[@]}"; do build_python "$guest"; done

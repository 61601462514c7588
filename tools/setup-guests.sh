#!/usr/bin/env bash
# Installs what the guests are built with: the standard library of wasm32-wasip2 and componentize-py.
#
# Everything lands in one folder, .cache/guests in the checkout or $BELLJAR_GUEST_CACHE, which several
# checkouts may share. Its env.sh says where things are; tools/build-guests.sh reads it.
# A second run finds the stamp and returns at once.
set -euo pipefail

TARGET=wasm32-wasip2
COMPONENTIZE_PY=0.25.1
# What guests/Cargo.toml asks for.
MIN_RUST=1.95.0
# Raise when the steps below change in a way that makes an older folder wrong.
RECIPE=1

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${BELLJAR_GUEST_CACHE:-$root/.cache/guests}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
# rustup picks the toolchain by folder, so every rustc below has to be asked from inside the checkout.
cd "$root"

say() { printf 'setup-guests: %s\n' "$*" >&2; }
die() { printf 'setup-guests: error: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command that nobody wants to read unless it fails.
quietly() {
    local log=$cache/last-step.log
    "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; return 1; }
}

# --- is it all there already? -------------------------------------------------------------------

has_std() { compgen -G "$1/libstd-*.rlib" >/dev/null; }

# Names everything that makes a finished folder stale: these steps, the pins, the compiler.
# An env.sh written for another compiler than today's is no use, so the stamp holds its version.
stamp_of() {
    printf 'recipe %s, componentize-py %s, %s\n' "$RECIPE" "$COMPONENTIZE_PY" "$("$1" --version)"
}

is_done() {
    [ -f "$cache/stamp" ] && [ -f "$cache/env.sh" ] || return 1
    (
        # shellcheck disable=SC1091
        . "$cache/env.sh"
        # shellcheck disable=SC2153
        [ -x "$GUEST_COMPONENTIZE_PY" ] && [ -x "$GUEST_PYTHON" ] &&
            [ -d "$GUEST_TARGET_LIBDIR" ] && has_std "$GUEST_TARGET_LIBDIR" &&
            [ "$(cat "$cache/stamp")" = "$(stamp_of "$RUSTC" 2>/dev/null)" ]
    )
}

is_done && exit 0

have flock || die "flock is missing; it is in the package util-linux"
exec 9>"$cache/lock"
flock -n 9 || { say "another run is at work in $cache, waiting for it"; flock 9; }
is_done && exit 0

# --- Debian packages ----------------------------------------------------------------------------

need_root() {
    [ "$(id -u)" = 0 ] || die "these Debian packages are missing: $*. Run 'sudo apt-get install --no-install-recommends $*', then this again"
}

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Installs what is missing; with --upgrade also what is there in an old version.
apt_install() {
    local missing=() package upgrade=
    [ "$1" != --upgrade ] || { upgrade=1; shift; }
    for package in "$@"; do
        [ -z "$upgrade" ] && is_installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    have apt-get || die "apt-get is missing, so these cannot be installed: ${missing[*]}"
    need_root "${missing[@]}"
    # A machine's lists may be empty or a year old, and old lists name an old compiler. A source of
    # somebody else's that cannot be reached is no reason to stop: whether the install works is.
    say "apt-get update"
    quietly apt-get update || say "apt-get update failed (its output is above), trying to install all the same"
    say "apt-get install ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "${missing[@]}" ||
        die "apt-get could not install ${missing[*]} (its output is above); check the sources in /etc/apt and the network"
}

# --- Rust ---------------------------------------------------------------------------------------

# Prints one-line sources for SUITE from wherever the machine gets its own release from, so that a
# configured mirror (and its key) is used and none is named here.
sources_for() {
    local codename=$1 suite=$2 file
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        awk -v RS='' -v codename="$codename" -v suite="$suite" '
            {
                types = uris = suites = key = off = ""
                n = split($0, lines, "\n")
                for (i = 1; i <= n; i++) {
                    if (lines[i] ~ /^#/) continue
                    name = tolower(lines[i]); sub(/:.*/, "", name)
                    value = lines[i]; sub(/^[^:]*:[ \t]*/, "", value)
                    if (name == "types") types = value
                    if (name == "uris") uris = value
                    if (name == "suites") suites = value
                    if (name == "signed-by") key = value
                    if (name == "enabled" && tolower(value) == "no") off = 1
                }
                if (off || " " types " " !~ / deb / || index(" " suites " ", " " codename " ") == 0) next
                option = key ~ /^\// ? "[signed-by=" key "] " : ""
                m = split(uris, each, /[ \t]+/)
                for (i = 1; i <= m; i++) print "deb " option each[i] " " suite " main"
            }' "$file"
    done
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -f "$file" ] || continue
        awk -v codename="$codename" -v suite="$suite" '
            $1 == "deb" {
                option = ""; at = 2
                if ($2 ~ /^\[/) {
                    while ($at !~ /\]$/ && at < NF) { option = option $at " "; at++ }
                    option = option $at " "; at++
                }
                if ($(at + 1) == codename) print "deb " option $at " " suite " main"
            }' "$file"
    done
}

# Unpacks a wasi-libc that is new enough for today's std into $1, without installing it: the one of
# Debian 12 is from 2022, so the backports are asked as well and the newest wins.
fetch_wasi_libc() {
    local into=$1 work=$cache/wasi-libc codename
    # shellcheck disable=SC1091
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    rm -rf "$work"
    mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/parts"
    { sources_for "$codename" "$codename"; sources_for "$codename" "$codename-backports"; } >"$work/sources.list"
    [ -s "$work/sources.list" ] || die "no source for '$codename' in /etc/apt, where wasi-libc would come from"
    local private=(
        -o "Dir::Etc::SourceList=$work/sources.list" -o "Dir::Etc::SourceParts=$work/parts"
        -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work"
        -o "Dir::Cache::Archives=$work/archives" -o APT::Sandbox::User=root
    )
    say "fetching wasi-libc"
    quietly apt-get "${private[@]}" update || die "no package list of $codename-backports from the configured mirror (apt's output is above)"
    local version
    version=$(apt-cache "${private[@]}" madison wasi-libc | awk '{ print $3 }' | sort -Vr | head -n 1)
    [ -n "$version" ] || die "the configured mirror has no wasi-libc in $codename or $codename-backports"
    (cd "$work/archives" && quietly apt-get "${private[@]}" download "wasi-libc=$version") ||
        die "could not download wasi-libc $version (apt's output is above)"
    dpkg -x "$work"/archives/wasi-libc_*.deb "$work/files"
    local lib
    lib=$(dirname "$(find "$work/files" -path '*wasm32-wasi/crt1-reactor.o' -print -quit)")
    [ -f "$lib/libc.a" ] || die "wasi-libc $version has no wasm32-wasi/crt1-reactor.o and libc.a: too old or laid out differently"
    mkdir -p "$into"
    cp "$lib/crt1-command.o" "$lib/crt1-reactor.o" "$lib/libc.a" "$into/"
    rm -rf "$work"
}

# The folder of a rustup toolchain that holds rust-lld and wasm-component-ld; Debian ships neither.
linkers_of_rustup() {
    local host=$1 each
    for each in "$(rustc --print sysroot 2>/dev/null || true)" "${RUSTUP_HOME:-$HOME/.rustup}"/toolchains/*; do
        each=$each/lib/rustlib/$host/bin
        [ -x "$each/wasm-component-ld" ] && [ -x "$each/rust-lld" ] && { readlink -f "$each"; return 0; }
    done
    return 1
}

rust_is_new_enough() {
    local version
    version=$(/usr/bin/rustc --version | awk '{ print $2 }')
    [ "$(printf '%s\n' "$MIN_RUST" "$version" | sort -V | head -n 1)" = "$MIN_RUST" ]
}

# Debian's compiler with a std built from Debian's source of it: for machines that may not ask
# rustup for a target. rustup's own compiler cannot build that source, it is of another version.
rust_from_debian() {
    have dpkg || die "the std of $TARGET is missing. Run 'rustup target add $TARGET' where that is possible; the other way needs Debian's rustc-web"
    apt_install rustc-web cargo-web rust-web-src
    rust_is_new_enough || apt_install --upgrade rustc-web cargo-web rust-web-src
    rust_is_new_enough || die "Debian's rustc-web here is $(/usr/bin/rustc --version), the guests need $MIN_RUST; add the release's security updates to /etc/apt, or use rustup"
    local sysroot=$cache/sysroot host linkers rustlib work=$cache/std-build
    rustlib=$sysroot/lib/rustlib
    guest_cargo=/usr/bin/cargo
    guest_rustc=$sysroot/bin/rustc
    guest_libdir=$rustlib/$TARGET/lib
    # Kept when only something after it failed or moved on.
    [ "$(cat "$sysroot/stamp" 2>/dev/null)" = "$(stamp_of "$guest_rustc" 2>/dev/null)" ] && return 0
    host=$(/usr/bin/rustc -vV | sed -n 's/^host: //p')
    linkers=$(linkers_of_rustup "$host") ||
        die "no rustup toolchain with wasm-component-ld was found; install a Rust toolchain with rustup, then run this again"
    rm -rf "$sysroot" "$work"
    mkdir -p "$sysroot/bin" "$rustlib/$host" "$rustlib/$TARGET/lib/self-contained" "$work/src"
    printf '#!/bin/sh\nexec /usr/bin/rustc --sysroot "%s" "$@"\n' "$sysroot" >"$sysroot/bin/rustc"
    chmod +x "$sysroot/bin/rustc"
    ln -s "$(/usr/bin/rustc --print target-libdir)" "$rustlib/$host/lib"
    ln -s "$linkers" "$rustlib/$host/bin"
    ln -s "$(/usr/bin/rustc --print sysroot)/lib/rustlib/src" "$rustlib/src"
    [ -f "$rustlib/src/rust/library/std/Cargo.toml" ] || die "rust-web-src has no library/std where it is expected ($rustlib/src)"
    fetch_wasi_libc "$rustlib/$TARGET/lib/self-contained"

    say "building std for $TARGET (about a minute)"
    printf '[package]\nname = "empty"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "src/lib.rs"\n[workspace]\n' >"$work/Cargo.toml"
    printf '#![no_std]\n' >"$work/src/lib.rs"
    # Guests are linked with LTO, which fails on a std without bitcode.
    (
        cd "$work"
        unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET
        export RUSTFLAGS=-Cembed-bitcode=yes RUSTC_BOOTSTRAP=1 RUSTC=$sysroot/bin/rustc CARGO_TARGET_DIR=$work/target
        quietly /usr/bin/cargo build --release -Zbuild-std=std,panic_abort --target "$TARGET"
    ) || die "std did not build (cargo's output is above)"
    cp "$work/target/$TARGET/release/deps/"*.rlib "$rustlib/$TARGET/lib/"
    rm -f "$rustlib/$TARGET/lib/"libempty-*.rlib
    rm -rf "$work"
    stamp_of "$guest_rustc" >"$sysroot/stamp"
}

rust_as_it_is() {
    guest_cargo=$(command -v cargo) && guest_rustc=$(command -v rustc) || return 1
    guest_libdir=$(rustc --print target-libdir --target "$TARGET" 2>/dev/null) || return 1
    has_std "$guest_libdir"
}

set_up_rust() {
    have cargo || have rustup || die "no Rust here; install it with rustup (the version is in rust-toolchain.toml), then run this again"
    rust_as_it_is && return 0
    # 0 is the user's word that rustup must not download anything.
    if have rustup && [ "${RUSTUP_AUTO_INSTALL:-1}" != 0 ]; then
        say "rustup target add $TARGET"
        if quietly rustup target add "$TARGET" && rust_as_it_is; then return 0; fi
        say "rustup could not add $TARGET, trying Debian's packages"
    fi
    rust_from_debian
}

# --- Python -------------------------------------------------------------------------------------

set_up_python() {
    have python3 || apt_install python3
    local dir=$cache/componentize-py-$COMPONENTIZE_PY python
    # The real interpreter: version managers put slow wrappers on PATH that depend on the folder.
    python=$(python3 -c 'import sys; print(sys.executable)')
    guest_python=$python
    guest_componentize_py=$dir/run
    [ -x "$dir/run" ] && "$dir/run" --version >/dev/null 2>&1 && return 0
    say "installing componentize-py $COMPONENTIZE_PY"
    rm -rf "$dir" "$dir.new"
    local wanted="componentize-py==$COMPONENTIZE_PY"
    "$python" -m pip --version >/dev/null 2>&1 || apt_install python3-pip
    quietly "$python" -m pip install --quiet --only-binary :all: --target "$dir.new" "$wanted" ||
        die "pip could not install $wanted (its output is above); it needs CPython 3.10 or newer and a platform that the wheel exists for"
    printf '#!/bin/sh\nPYTHONPATH="%s" exec "%s" "%s/bin/componentize-py" "$@"\n' "$dir" "$python" "$dir" >"$dir.new/run"
    chmod +x "$dir.new/run"
    mv "$dir.new" "$dir"
    "$dir/run" --version >/dev/null || die "componentize-py was installed, yet '$dir/run --version' fails"
}

# --- all of it ----------------------------------------------------------------------------------

# Whatever fails from here on must not leave a stamp that says it is done.
rm -f "$cache/stamp"
set_up_rust
set_up_python
{
    echo "# Written by tools/setup-guests.sh; what tools/build-guests.sh builds with."
    printf 'GUEST_CARGO=%q\n' "$guest_cargo"
    printf 'export RUSTC=%q\n' "$guest_rustc"
    printf 'GUEST_TARGET_LIBDIR=%q\n' "$guest_libdir"
    printf 'GUEST_PYTHON=%q\n' "$guest_python"
    printf 'GUEST_COMPONENTIZE_PY=%q\n' "$guest_componentize_py"
} >"$cache/env.sh.new"
mv "$cache/env.sh.new" "$cache/env.sh"
stamp_of "$guest_rustc" >"$cache/stamp"
rm -f "$cache/last-step.log"
say "ready in $cache"

# Everything that is done with this checkout starts here: `./just --list` says what there is.
# `./just` fetches `just` itself on the first use.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Show the recipes.
default:
    @"{{ just_executable() }}" --justfile "{{ justfile() }}" --list

# --- guests: the components that run in the sandbox ---

# Install what guests are built with, into .cache/guests (BELLJAR_GUEST_CACHE names another folder).
[group('guests')]
setup-guests:
    @tools/setup-guests.sh

# Build every guest from source into target/guests/.
[group('guests')]
guests: setup-guests
    @tools/build-guests.sh

# Check the format of, lint and test the guests' own workspace.
[group('guests')]
check-guests:
    cargo fmt --manifest-path guests/Cargo.toml --all --check
    cargo clippy --quiet --locked --manifest-path guests/Cargo.toml --target-dir target/guests-host --workspace --all-targets -- -D warnings
    cargo test --quiet --locked --manifest-path guests/Cargo.toml --target-dir target/guests-host -p ledger-book

# --- host: build, run, check ---

# --- tests and benchmarks ---

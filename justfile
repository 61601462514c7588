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

# Show the main job: a conversation, a tool, a file, a swap of versions in mid-session.
[group('host')]
demo: guests
    cargo build --quiet --locked -p belljar-cli
    target/debug/belljar demo --guests target/guests

# Run the server on 127.0.0.1:7700; arguments go to `belljar serve`.
[group('host')]
serve *ARGS:
    cargo run --quiet --release --locked -p belljar-cli -- serve {{ ARGS }}

# Format everything.
[group('host')]
fmt:
    cargo fmt --all
    cargo fmt --manifest-path guests/Cargo.toml --all

# Check formats, lints and licences.
[group('host')]
check: check-guests
    cargo fmt --all --check
    cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
    tools/deny.sh

# --- tests and benchmarks ---

# Install what the tests of the model wire run against: a model server that is not ours.
[group('tests')]
setup-wire:
    @tests/wire/setup.sh

# Run all tests.
[group('tests')]
test: guests setup-wire
    cargo build --quiet --locked -p belljar-cli
    cargo test --quiet --locked --workspace

# Tell the decision protocol's stories to the engine; DIR (or BELLJAR_VECTORS) holds other vectors.
[group('tests')]
conformance *DIR:
    @cargo run --quiet --locked -p belljar-tests --bin conformance -- {{ DIR }}

# Measure, as ratios to a floor of the same run; writes target/bench.json.
[group('tests')]
bench: guests
    cargo bench --quiet --locked -p belljar-tests --bench bench

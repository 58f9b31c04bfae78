#!/usr/bin/env bash
# Checks the dependencies: licenses, sources and bans (deny.toml) and known vulnerabilities; writes a list of all
# parts.
# Licenses and sources need no network. Vulnerabilities come from remote databases. If a database is unreachable, only
# its part is SKIPPED, with a message.
set -uo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
PATH=$PATH:$CARGO_TARGET_DIR/tools/bin
log=$(mktemp) failed=0
trap 'rm -f "$log"' EXIT

skipped() { printf 'SKIPPED: %s\n' "$1" >&2; }
broken() { # what
    printf 'FAILED: %s\n' "$1" >&2
    cat "$log" >&2
    failed=1
}

if ! command -v cargo-deny >/dev/null; then
    skipped "licences, sources, bans and advisories of crates: no cargo-deny (scripts/setup.sh installs it)"
else
    cargo deny --locked check --hide-inclusion-graph licenses bans sources >"$log" 2>&1 && tail -n 1 "$log" ||
        broken "cargo deny check licenses bans sources"
    if timeout 60 cargo deny --locked fetch db >"$log" 2>&1; then
        cargo deny --locked check --disable-fetch advisories >"$log" 2>&1 && tail -n 1 "$log" ||
            broken "cargo deny check advisories"
    else
        skipped "advisories of crates: the advisory database cannot be fetched from here"
    fi
fi

# Includes build and test dependencies, because they run on the developers' machines.
for part in sdk/typescript web docs; do
    timeout 60 npm --prefix $part audit --audit-level=moderate --fetch-retries=0 >"$log" 2>&1
    case $? in
        0) echo "npm audit of $part: $(tail -n 1 "$log")" ;;
        *) if grep -q 'audit endpoint returned an error\|EAI_AGAIN\|ENOTFOUND\|ECONNREFUSED\|ETIMEDOUT' "$log"; then
               skipped "advisories of npm packages ($part): the registry's audit cannot be reached from here"
           else
               broken "npm audit of $part"
           fi ;;
    esac
done

node scripts/sbom.mjs "$CARGO_TARGET_DIR/sbom" >"$log" 2>&1 && cat "$log" || broken "scripts/sbom.mjs"
exit $failed

#!/usr/bin/env bash
# Checks that the tests named in docs/explanation/security.md fail without the defense that they test. Removes some
# defenses, one after the other, in a copy of the sources. Runs the row's test before and after each removal.
# Usage: security-teeth.sh [WORD], for the rows whose name contains WORD. Slow: it builds for each row.
set -uo pipefail
cd "$(dirname "$0")/.."
# A separate target folder: cargo cannot distinguish builds of the copy from builds of the original.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/teeth
only=${1:-}
copy=$(mktemp -d)/millrace
trap 'rm -rf "$(dirname "$copy")"' EXIT
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -a -t "$(mkdir -p "$copy" && echo "$copy")"
# The web pages are not needed here.
mkdir -p "$copy/web/pack"
log=$(mktemp) bitten=0 toothless=0

# Arguments: row, file, text to replace (a Perl expression that must match once), replacement, the row's test.
without() {
    local row=$1 file=$copy/$2 what=$3 with=$4
    shift 4
    [[ $row == *"$only"* ]] || return 0
    if ! (cd "$copy" && "$@") >"$log" 2>&1; then
        tail -n 40 "$log"
        verdict "$row" "FAILS ANYWAY"
        return
    fi
    cp -a "$file" "$file.kept"
    if ! what=$what with=$with perl -0pi -e '$n = s/$ENV{what}/$ENV{with}/g; END { exit($n == 1 ? 0 : 1) }' "$file"; then
        verdict "$row" "NOT FOUND in $2"
    elif (cd "$copy" && "$@") >"$log" 2>&1; then
        verdict "$row" "TOOTHLESS: its test passes without it"
    elif grep -q '^error\(\[E\|: could not compile\)' "$log"; then
        tail -n 40 "$log"
        verdict "$row" "does not even build without it"
    else
        grep -m 3 -A 3 'panicked at\|wrong\|FAILED' "$log" | cut -c -220 | head -n 12
        verdict "$row" bites
    fi
    # Gives the file a newer date than the last build, so that it is built again.
    mv "$file.kept" "$file" && touch "$file"
}

verdict() {
    if [ "$2" = bites ]; then bitten=$((bitten + 1)); else toothless=$((toothless + 1)); fi
    printf '=== %-46s %s\n' "$1" "$2"
}

test_of() { echo cargo test --quiet --locked -p "millrace-$1" "${@:2}"; }

without "a ticket of somebody else" crates/protocol/src/ticket.rs \
    'signed\.map_err\(' 'Some(()).ok_or(signed).map_err(' \
    $(test_of protocol --lib ticket_is_valid_only_for_its_subject)
without "a subscription beyond the grant" crates/protocol/src/channel.rs \
    'held == "\+" && level != "#"' 'held == "+"' \
    $(test_of protocol --lib pattern_covers_only_patterns_inside_it)
without "operator requests without the permission" crates/transport/src/admission/access/caller.rs \
    'match \(self\.anonymous, self\.grant\.is_admin\)' 'match (false, self.anonymous || !self.anonymous)' \
    $(test_of transport --test it only_admin_tokens_send_operator_requests)
without "channels of the server itself" crates/transport/src/admission/access/caller.rs \
    'if is_internal\(target\.as_str\(\)\)' 'if is_internal(target.as_str()) && self.anonymous' \
    $(test_of transport --test it no_client_may_use_internal_channels)
without "pages of other origins read answers" crates/transport/src/admission/access/origin.rs \
    'Origin::Foreign => CorsAccess::Refusal' 'Origin::Foreign => CorsAccess::Answer { with_cookies: false }' \
    $(test_of transport --test it only_allowed_origins_may_read)
without "passwords of engines" crates/engine/src/shown_url.rs \
    'rest\.rsplit_once\(.@.\)\.map_or\(rest, \|\(_, rest\)\| rest\)' 'rest' \
    $(test_of cli --test it secrets_are_in_no_output_and_no_error)
without "buffers of half-sent requests" crates/transport/src/serve/write_timeout.rs \
    'this\.hold\(buf\.capacity\(\)\)\?;' '' \
    $(test_of transport --lib large_buffer_is_counted_until_connection_ends)
without "the scheme of an origin" crates/transport/src/admission/access/origin.rs \
    'is_same_scheme = !access\.is_https' 'is_same_scheme = true' \
    $(test_of transport --test it http_page_is_foreign_to_https_server)
without "a second Host" crates/transport/src/admission/access/origin.rs \
    'if named\.next\(\)\.is_some\(\)' 'if false' \
    $(test_of transport --test it request_must_name_exactly_one_host)
without "answers to forged addresses" crates/rtc/src/connection.rs \
    'const AMPLIFICATION_MAX: usize = 3;' 'const AMPLIFICATION_MAX: usize = 3000;' \
    $(test_of rtc --lib unproven_address_receives_little)
without "libraries in the log" crates/server/src/log.rs \
    'format!\("\{OWN\}=\{part\}"\)' 'part.to_owned()' \
    $(test_of cli --test it peer_input_never_logs_a_warning)
without "the depth of JSON" crates/protocol/src/publication.rs \
    '&& depth\(json\) > JSON_DEPTH_MAX' '&& false' \
    $(test_of transport --test it too_deep_json_is_refused)

rm -f "$log"
printf '%d passed, %d failed\n' $bitten $toothless
[ $toothless -eq 0 ]

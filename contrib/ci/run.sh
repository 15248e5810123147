#!/bin/sh
# Runs xcheck in a job of GitHub: the report as the job's summary, the first divergence as an annotation.
#
# XCHECK_ARGUMENTS  what to run, without `xcheck` and --report: one line, cut at blanks; or a line for each argument
# XCHECK_REPORT     the folder of the report [default: xcheck-report]
#
# The outputs are `code` (xcheck's exit code), `verdict` (pass, fail, error, inconclusive) and `report`. The exit code of this
# script is 0: the job goes on to keep the report, then ends with `code`.
set -eu

newline='
'
report=${XCHECK_REPORT:-xcheck-report}
case $report in
*"$newline"*) echo "error: the name of the report's folder has a line break" >&2 && exit 2 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Names in messages come from files: the runner must not take a line of these for a command.
quoted() {
    token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    printf '::stop-commands::%s\n' "$token"
    cat "$@"
    printf '\n::%s::\n' "$token"
}

# One line, as a workflow command takes it.
escaped() { tr '\r' ' ' | sed 's/%/%25/g' | awk '{ printf "%s%s", separator, $0; separator = "%0A" }'; }

set -f
case "$XCHECK_ARGUMENTS" in
*"$newline"?*) IFS=$newline ;;
esac
# shellcheck disable=SC2086 # it is to be cut
set -- $XCHECK_ARGUMENTS
unset IFS
set +f

# An earlier report is not this one's, whatever becomes of it.
summary=$report/report.md
rm -f "$summary" "$report/report.json" "$report/report.html" "$report/junit.xml"

code=0
xcheck "$@" --report "$report" --format github >"$work/annotations" 2>"$work/messages" || code=$?
case $code in
0) verdict=pass ;;
1) verdict=fail ;;
3) verdict=inconclusive ;;
*) verdict=error ;;
esac

[ -f "$summary" ] || {
    mkdir -p "$report"
    printf '# xcheck: ERROR\n\nIt ended with exit code %s; its message is in the log.\n' "$code" >"$summary"
}
quoted "$work/messages" "$summary"
cat "$work/annotations"
[ "$verdict" != error ] || printf '::error title=xcheck::%s\n' "$( (cat "$work/messages" && echo "exit code $code") | escaped)"
cat "$summary" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
printf '%s=%s\n' code "$code" verdict "$verdict" report "$report" >>"${GITHUB_OUTPUT:-/dev/null}"

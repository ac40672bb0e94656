#!/bin/sh
# A CI job that attacks the repository's own Cellwall configuration, and fails where an attack gets through.
#
#     examples/ci_redteam/job.sh CONFIG [OPTIONS OF cellwall redteam…]
#
# CONFIG is the file that your agents run with; examples/ci_redteam/cellwall.toml holds, and weakened.toml, a change
# that a colleague proposes, does not. Reports are written to $REPORTS (default: reports): JUnit for the list of tests,
# SARIF for code scanning, HTML for people. With --strict, an attack that this machine cannot prove fails the job, too.
set -eu
config=$1
shift
reports=${REPORTS:-reports}
mkdir -p "$reports"

echo "== what works on this machine"
cellwall doctor --config "$config"

echo "== what code can reach with $config"
cellwall policy blast-radius --config "$config"

echo "== attacks"
if cellwall redteam --config "$config" --junit "$reports/redteam.xml" --sarif "$reports/redteam.sarif" \
  --html "$reports/redteam.html" "$@"
then echo "== passed: no attack got through"
else
  code=$?
  echo "== failed: see $reports/redteam.html"
  exit $code
fi

#!/usr/bin/env bash
# Checks the contents of a release: that every crate can be packaged, that its dependencies build with the Rust version
# that the workspace states, and their licences and sources (deny.toml). Builds nothing of the workspace.
#
#   CARGO_DENY_SECONDS   time limit to install cargo-deny if it is missing; 600 unless set, 0 leaves it out
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '%s\n' "packages.sh: $*" >&2; }

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' scripts/packages.sh; exit; }

# --- packages ----------------------------------------------------------------------------------------

metadata=$(cargo metadata --locked --format-version 1 --filter-platform x86_64-unknown-linux-gnu)

kept=$(python3 -c '
import json, sys
data = json.load(sys.stdin)
members = [p for p in data["packages"] if p["id"] in data["workspace_members"]]
for package in members:
    if package["publish"] == []:
        print(package["name"])
        continue
    missing = [key for key in ("description", "license", "repository", "readme") if not package[key]]
    if missing or "docs" not in (package["metadata"] or {}):
        lacks = ", ".join(missing) or "package.metadata.docs.rs"
        sys.exit("packages.sh: %s: Cargo.toml lacks %s" % (package["name"], lacks))
' <<<"$metadata")
package=(cargo package --workspace --no-verify --allow-dirty --quiet)
for name in $kept; do package+=(--exclude "$name"); done
# Asks the index of a registry only if the local one does not suffice.
"${package[@]}" --offline 2>/dev/null || timeout 300 "${package[@]}"
say "every crate but ${kept//$'\n'/ and } can be packaged"

# --- the oldest Rust ---------------------------------------------------------------------------------

python3 -c '
import json, sys
data = json.load(sys.stdin)
number = lambda text: tuple(int(part) for part in (text + ".0.0").split(".")[:3])
members = [p for p in data["packages"] if p["id"] in data["workspace_members"]]
stated = {p["rust_version"] for p in members}
if len(stated) != 1 or None in stated:
    sys.exit(f"packages.sh: FAILED: one rust-version for all crates is wanted, and there are {stated}")
least = stated.pop()
newer = ["%s %s wants %s" % (p["name"], p["version"], p["rust_version"]) for p in data["packages"]
         if number(p["rust_version"] or "0") > number(least)]
if newer:
    sys.exit(f"packages.sh: FAILED: rust-version is {least}, and " + ", ".join(newer))
print(f"packages.sh: no dependency wants a newer Rust than {least}", file=sys.stderr)
' <<<"$metadata"

# --- licences and sources ----------------------------------------------------------------------------

deny_version=0.20.2

if deny=$(scripts/cargo-tool.sh cargo-deny "$deny_version" "${CARGO_DENY_SECONDS:-600}"); then
  "$deny" --log-level warn check --hide-inclusion-graph licenses bans sources >&2
  say 'licences, bans and sources of the dependencies pass'
else
  say "MISSING: licences and sources of the dependencies: cargo-deny could not be installed; \
cargo install cargo-deny --locked --version $deny_version"
fi

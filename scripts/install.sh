#!/usr/bin/env bash
# install.sh TRAINER: installs the program, its manual pages and its shell completions below $PREFIX (default: ~/.local).
set -euo pipefail

trainer=${1:?name the built program, such as target/release/trainer}
prefix=${PREFIX:-$HOME/.local}

install -D -m 755 "$trainer" "$prefix/bin/trainer"
"$trainer" man --dir "$prefix/share/man/man1"
completions() {
  mkdir -p "$prefix/share/$(dirname "$2")"
  "$trainer" completions "$1" >"$prefix/share/$2"
}
completions bash bash-completion/completions/trainer
completions zsh zsh/site-functions/_trainer
completions fish fish/vendor_completions.d/trainer.fish
echo "installed $prefix/bin/trainer, its manual pages and its completions"
case :$PATH: in
  *:"$prefix/bin":*) ;;
  *) echo "$prefix/bin is not on PATH" ;;
esac

#!/usr/bin/env bash
# Stands for `trainer` where commands of the documentation are tested (trainer/tests/docs, slurm-test.sh): $REAL_TRAINER is the
# program.
#
# If a command uses a built-in configuration, it trains 40 steps of 16 images and downloads nothing; large models become
# small. With SMALL_DATA=generated it uses generated images. If its configuration is a file that sets no train_samples, it
# trains on at most 2048 images. All other commands run as they are. Settings of the command itself come later and win.
set -euo pipefail

config='' resumed='' command=()
case ${1:-} in
  train | check | preview | lr-find | eval | predict)
    command=("$1")
    shift
    ;;
  -* | *.toml | '') ;;
  *) exec "$REAL_TRAINER" "$@" ;;
esac
for ((i = 1; i <= $#; i++)); do
  next=$((i + 1))
  case ${!i} in
    --config) config=${!next-} ;;
    --config=*) config=${!i#--config=} ;;
    *.toml) config=${!i} ;;
    --resume) [[ ${!next-} == auto || ${!next-} == off ]] || resumed=1 ;;
    --help | --version) exec "$REAL_TRAINER" "${command[@]}" "$@" ;;
  esac
done
# A training without a configuration takes digits.toml.
[[ -n $config || -n $resumed || ${command[0]:-train} != train ]] || config=digits.toml

small=()
if [[ -n $config && ! -e $config ]]; then
  small=(--set train.max_steps=40 --set train.batch_size=16 --set data.download=false)
  case $config in
    wrn*) small+=(--set model.depth=10 --set model.widen=1) ;;
    olivia*) small+=(--set model.preset=wrn-16-4 --set model.depth=10 --set model.widen=1) ;;
    vit*) small+=(--set model.depth=1) ;;
  esac
  [[ -z ${SMALL_DATA:-} || $config == digits* ]] || small+=(--set "data.name=$SMALL_DATA" --set data.train_samples=320 --set data.test_samples=64)
elif [[ -n $config && ${command[0]:-train} == train ]] && ! grep -q train_samples "$config"; then
  small=(--set data.train_samples=2048 --set data.test_samples=256)
fi
exec "$REAL_TRAINER" "${command[@]}" "${small[@]}" "$@"

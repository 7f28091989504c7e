# Starts two ranks as a launcher does that sets their variables; SKIP is one that is not attached.
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 INIT="file://$OUT/meeting"
for rank in 0 1; do
  if [ "$rank" = "$SKIP" ]; then export LOOM_ATTACH=0; fi
  RANK=$rank LOCAL_RANK=$rank "$1" "$2" &
done
wait

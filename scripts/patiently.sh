# To be sourced by a script that has a function `say`.

# Runs a command, and says every four seconds that it still does. The sleep holds no pipe open after the end.
patiently() {
  local clock
  while sleep 4 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do say "${SECONDS} s so far"; done &  # ends with this script
  clock=$!
  local code=0
  "$@" || code=$?
  kill "$clock" 2>/dev/null && wait "$clock" 2>/dev/null || true
  return "$code"
}

# One JSON a part, and the table at the end; sourced by gpu_check.sh. No Python: the machine may
# have none.

# quote TEXT: as a string of JSON. Control characters are left out, but for ends of lines and tabs.
quote() {
  printf '%s' "$1" | LC_ALL=C tr -d '\000-\010\013-\037\177' |
    awk 'BEGIN { ORS = "" }
      NR > 1 { print "\\n" }
      { gsub(/\\/, "\\\\\\\\"); gsub(/"/, "\\\""); gsub(/\t/, "\\t"); print }
      END { }' | sed 's/^/"/; s/$/"/' | { read -r line || true; printf '%s' "${line:-\"\"}"; }
}

# row NAME STATUS DETAIL: one line of the running part. STATUS: pass, fail, not run, or unfinished,
# which is out of time.
row() {
  rows+=("{\"name\": $(quote "$1"), \"status\": \"$2\", \"detail\": $(quote "$3")}")
  printf '  %-34s %-10s %s\n' "$1" "$2" "$(printf '%s' "$3" | head -n 1 | cut -c 1-150)"
  last_detail=$3
  case "$2" in
    fail) part_failed=1 ;;
    pass) part_passed=1 ;;
    unfinished) part_unfinished=1 ;;
  esac
  [ -z "${part_rows:-}" ] || printf '%s\n' "${rows[-1]}" >>"$part_rows"
}

# ended_row NAME CODE DETAIL: of a process that ended with this exit code, which is not 0.
ended_row() {
  if [ "$2" = 124 ]; then
    row "$1" unfinished "out of time${3:+: $3}"
  else
    row "$1" fail "exit code $2${3:+: $3}"
  fi
}

packed_commit() { cat "$here/COMMIT" 2>/dev/null || echo unknown; }

# is_of_this JSON: of this device and these programs.
is_of_this() {
  grep -qF " \"device\": $(quote "$device")," "$1" 2>/dev/null &&
    grep -qF " \"commit\": $(quote "$(packed_commit)")," "$1"
}

# is_done JSON: of such a part that came to its end, whatever it saw, and left nothing to run.
is_done() {
  grep -qE '^ "status": "(pass|fail)",$' "$1" 2>/dev/null &&
    grep -qF ' "complete": true,' "$1" && is_of_this "$1"
}

# write_json FILE PART STATUS REASON SECONDS
write_json() {
  {
    printf '{\n "part": %s,\n "status": "%s",\n "complete": %s,\n "reason": %s,\n' \
      "$(quote "$2")" "$3" "$part_complete" "$(quote "$4")"
    printf ' "date": "%s",\n "seconds": %s,\n "commit": %s,\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
      "$5" "$(quote "$(packed_commit)")"
    printf ' "device": %s,\n "gpu": %s,\n "driver": %s,\n' "$(quote "$device")" \
      "$(quote "$gpu_name")" "$(quote "$driver_version")"
    [ -z "$gpu_before$gpu_after" ] || printf ' "gpu_before": %s,\n "gpu_after": %s,\n' \
      "$(quote "$gpu_before")" "$(quote "$gpu_after")"
    printf ' "cuda_libraries": %s,\n "cublas": %s,\n "versions": %s,\n "host": %s,\n "rows": [' \
      "$(quote "$cuda_folders")" "$(quote "$cublas_version")" "$(quote "$library_versions")" \
      "$(quote "$(uname -srm)")"
    local i
    for i in "${!rows[@]}"; do
      [ "$i" = 0 ] || printf ','
      printf '\n  %s' "${rows[$i]}"
    done
    printf '\n ]\n}\n'
  } >"$1.new"
  mv "$1.new" "$1" # whole at any time
}

# print_table OUT PART…: from the JSON files; ends the script with the exit code of the whole.
print_table() {
  local out=$1 name status failed=0 missing=0
  shift
  printf '\n%-18s %-10s %7s  %s\n' part status seconds result
  for name in "$@"; do
    status=$(sed -n 's/^ "status": "\(.*\)",$/\1/p' "$out/$name.json")
    printf '%-18s %-10s %7s  %s\n' "$name" "$status" \
      "$(sed -n 's/^ "seconds": \(.*\),$/\1/p' "$out/$name.json")" \
      "$(sed -n 's/^ "reason": "\(.*\)",$/\1/p' "$out/$name.json" | cut -c 1-150)"
    [ "$status" != fail ] && [ "$status" != unfinished ] || failed=1
    [ "$status" != "not run" ] || missing=1
  done
  if ls "$out"/*.jsonl >/dev/null 2>&1; then
    echo
    "$python" "$here/bench/pytorch/gpu.py" --table "$out"/*.jsonl | tee "$out/bench.md"
  fi
  echo "gpu_check: results in $out and $out.tar.gz"
  [ "$failed" = 0 ] || exit 1
  [ "$missing" = 0 ] || exit 10
  exit 0
}

# Downloads with a pinned checksum; sourced by scripts/setup*.sh, which set `cache` and say().

# fetch NAME==VERSION SHA256 FOLDER [pip options]: one file from PyPI, checked, left in FOLDER.
fetch() {
  local requirement=$1 sha=$2 folder=$3
  shift 3
  rm -rf "$folder" && mkdir -p "$folder"
  "$cache/venv/bin/pip" download -q --disable-pip-version-check --no-deps \
    -d "$folder" "$@" "$requirement"
  local file
  file=$(find "$folder" -type f | head -n 1)
  if ! echo "$sha  $file" | sha256sum --check --status; then
    say "$requirement: SHA-256 differs from the pinned one: expected $sha," \
      "got $(sha256sum "$file" | cut -d' ' -f1)" >&2
    exit 1
  fi
}

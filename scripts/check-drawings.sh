#!/usr/bin/env bash
# usage: check-drawings.sh [FILE...]
# Shows drawings in headless Chromium without network, in light, dark and on a narrow screen, and
# asks of each what check-drawings.js says: titles, units, legends, nothing hidden or on top of each
# other, contrast. FILEs are pages (.html) and figures (.svg) of hither; without any, the examples of
# crates/hither/src/draw/examples.rs. Screenshots stay in target/drawings/ for people to look at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=target/drawings
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed_count=0
# What a blank picture has not: pixels unlike the ground, in thousandths, and colours.
least_ink=2
least_colours=8

stop() {
  printf 'drawings: %s\n' "$@" >&2
  exit 2
}

# chromium ARGUMENT...: without network, with settings of its own.
chromium() {
  local isolated=(unshare --net)
  [ "$(id -u)" -eq 0 ] || isolated=(unshare --map-root-user --net)
  if ! timeout 120 "${isolated[@]}" chromium --headless --no-sandbox --disable-gpu \
    --hide-scrollbars --user-data-dir="$work/settings" "$@" 2> "$work/log"; then
    cat "$work/log" >&2
    stop 'chromium failed; what it said is above'
  fi
}

# findings FILE [ARGUMENT...]: what check-drawings.js finds in a page or figure; a page as wide as $width
# says where it is set, as the browser has no window of less than 500.
findings() {
  local page=$work/page.html
  {
    # The page's own policy forbids the script that looks at it.
    [[ $1 == *.html ]] || printf '<!DOCTYPE html><html lang="en"><body>\n'
    sed '/http-equiv="Content-Security-Policy"/d' "$1"
    [[ $1 != *.html || -z ${width:-} ]] || printf '<style>html { width: %spx }</style>\n' "$width"
    printf '<script>\n'
    cat scripts/check-drawings.js
    printf '</script>\n'
  } > "$page"
  chromium "${@:2}" --dump-dom "file://$page" > "$work/dom"
  sed -n '/^findings$/,/^height /p' "$work/dom" | sed '1d; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g'
}

# judge NAME FINDINGS: counts and prints what failed.
judge() {
  local failed good
  failed=$(grep '^FAILED' <<< "$2" || true)
  good=$(grep -c '^ok' <<< "$2" || true)
  if [ -n "$failed" ] || [ "$good" -lt 5 ]; then
    printf '%s: %s\n' "$1" "${failed:-only $good findings, the page did not run}"
    failed_count=$((failed_count + 1))
  else
    printf '%s: %s findings, all good\n' "$1" "$good"
  fi
}

# Is there something on the picture? The browser reads its own screenshot.
judge_picture() {
  {
    printf '<img src="data:image/png;base64,'
    base64 --wrap=0 "$1"
    cat <<'PAGE'
"><pre></pre><script>
onload = () => {
  const image = document.images[0];
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const ground = Math.max(...counts.values());
  image.remove();
  document.querySelector("pre").textContent = `\nink ${Math.round((1 - ground / pixels.length) * 1000)} ${counts.size}\n`;
};
</script>
PAGE
  } > "$work/picture.html"
  chromium --dump-dom "file://$work/picture.html" > "$work/dom"
  local ink colours
  read -r _ ink colours < <(grep '^ink ' "$work/dom" || echo 'ink 0 0')
  if [ "$ink" -lt "$least_ink" ] || [ "$colours" -lt "$least_colours" ]; then
    printf '%s: FAILED, blank: %s in a thousand pixels, %s colours\n' "$1" "$ink" "$colours"
    failed_count=$((failed_count + 1))
  fi
}

check() {
  local file name found height
  file=$(realpath "$1")
  name=$(basename "$1")
  if [[ $name == *.html ]] && ! grep -q 'http-equiv="Content-Security-Policy"' "$file"; then
    printf '%s: FAILED, it has no policy against scripts\n' "$name"
    failed_count=$((failed_count + 1))
  fi
  judge "$name, narrow" "$(width=420 findings "$file" --window-size=500,800)"
  judge "$name, dark" "$(findings "$file" --blink-settings=preferredColorScheme=0)"
  found=$(findings "$file" --window-size=1020,800)
  judge "$name, light" "$found"
  height=$(sed -n 's/^height //p' <<< "$found")
  local size=--window-size=1020,${height:-800}
  chromium "$size" --screenshot="$out/$name.light.png" "file://$file"
  chromium "$size" --blink-settings=preferredColorScheme=0 \
    --screenshot="$out/$name.dark.png" "file://$file"
  judge_picture "$out/$name.light.png"
  judge_picture "$out/$name.dark.png"
}

# What is broken must be found, or all of the above is worth nothing: in a figure and in a page.
check_the_check() {
  local change found
  sed 's/^th,td{/&overflow-wrap:anywhere;/' "$2" > "$work/broken.html"
  cmp -s "$2" "$work/broken.html" && stop "nothing changes in $2"
  found=$(width=420 findings "$work/broken.html" --window-size=500,800)
  if ! grep -q '^FAILED page: no word is broken' <<< "$found"; then
    printf 'FAILED: broken words are not found in %s\n' "$2"
    failed_count=$((failed_count + 1))
  fi
  for change in 's/class="legend"/class="x"/' 's/ (MiB)</</' 's/y="30.0"/y="52.0"/' \
    's/fill="#222" color/fill="#eee" color/' 's/role="img"//'; do
    sed "$change" "$1" > "$work/broken.svg"
    cmp -s "$1" "$work/broken.svg" && stop "$change changes nothing in $1"
    found=$(findings "$work/broken.svg")
    if ! grep -q '^FAILED' <<< "$found"; then
      printf 'FAILED: with %s nothing is found in %s\n' "$change" "$1"
      failed_count=$((failed_count + 1))
    fi
  done
  printf '<p>' > "$work/blank.html"
  chromium --screenshot="$work/blank.png" "file://$work/blank.html"
  if (judge_picture "$work/blank.png"; exit "$failed_count") > /dev/null; then
    printf 'FAILED: a blank picture is not found\n'
    failed_count=$((failed_count + 1))
  fi
}

command -v chromium > /dev/null ||
  stop 'chromium is missing: run scripts/setup.sh --drawings, or make drawings'
mkdir -p "$out"
if [ $# -eq 0 ]; then
  HITHER_DRAWINGS=$PWD/$out cargo test --quiet --package hither --bins -- draw::examples
  set -- "$out"/*.html "$out"/*.svg
  check_the_check "$out/working-set.svg" "$out/page.html"
fi
for file; do
  [ -r "$file" ] || stop "$file cannot be read: name a page (.html) or a figure (.svg)"
  check "$file"
done
if [ "$failed_count" -ne 0 ]; then
  printf 'drawings: %s FAILED; screenshots are in %s/\n' "$failed_count" "$out"
  exit 1
fi
printf 'drawings: all good; screenshots are in %s/\n' "$out"

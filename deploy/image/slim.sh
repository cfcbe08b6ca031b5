#!/usr/bin/env bash
# Takes out of the image's environment what nothing imports; what each saves was measured (docs/deployment.md).
set -euo pipefail
cd "$VIRTUAL_ENV"/lib/python3*/site-packages

# A wheel cannot hold links, so each library of llama.cpp is there three times, and once more outside the package.
rm -rf include lib bin llama_cpp/include
for library in llama_cpp/lib/*.so.*.*; do
    [[ -f $library ]] || continue
    name=${library##*/}
    short=${name%.so.*}.so
    soname=$short.$(cut -d. -f1 <<<"${name#"$short".}")
    ln -sf "$name" "llama_cpp/lib/$short"
    ln -sf "$name" "llama_cpp/lib/$soname"
done

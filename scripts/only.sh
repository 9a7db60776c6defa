#!/bin/sh
# usage: only.sh PROGRAM [ARGUMENT...]
# What cargo starts test programs by (CARGO_TARGET_..._RUNNER): those of the packages of HITHER_ONLY, or all but those of
# HITHER_BUT; names of folders, in which cargo starts them. Examples of the documentation are always run. Choosing
# packages by cargo's own options builds what they need once more, with the features of those alone.
folder=${PWD##*/}
case $1 in
  */deps/*)
    case " ${HITHER_ONLY-$folder} " in *" $folder "*) ;; *) exit 0 ;; esac
    case " ${HITHER_BUT-} " in *" $folder "*) exit 0 ;; esac
    ;;
esac
# Tests start cargo, too.
unset CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER HITHER_ONLY HITHER_BUT
exec "$@"

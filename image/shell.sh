# shellcheck shell=dash
# Read first thing by /etc/bash.bashrc, and by profile.sh: the container's variables, and what a person has to know.
# `up` writes both files (entrypoint/shells.py); nothing here is written at a start, so nothing piles up.
# shellcheck disable=SC3028 # bash has it, and that saves a process
for roundhouse in /run/roundhouse "/tmp/roundhouse-${UID:-$(id -u)}/run"; do
  [ -O "$roundhouse" ] || continue # another user's may say anything
  # shellcheck source=/dev/null
  [ ! -O "$roundhouse/environment.sh" ] || . "$roundhouse/environment.sh"
  case $-${roundhouse_login-} in
  *login) ;; # bash has shown it
  *i*) [ ! -O "$roundhouse/banner" ] || cat "$roundhouse/banner" ;;
  esac
  break
done
unset roundhouse

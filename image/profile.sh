# shellcheck shell=sh
# /etc/profile.d/roundhouse.sh: the container's variables for login shells, whose PATH /etc/profile has just replaced. The
# first line of /etc/bash.bashrc reads it too, for shells below ssh and windows of tmux. `up` writes the file (shells.py);
# nothing here is written at a start, so nothing piles up.
for roundhouse in /run/roundhouse "/tmp/roundhouse-${UID:-$(id -u)}/run"; do
  if [ -O "$roundhouse" ] && [ -O "$roundhouse/environment.sh" ]; then
    . "$roundhouse/environment.sh"
    # What a failed run, or a machine that was to be stopped, has to say to whoever comes in.
    case $- in *i*) [ ! -s "$roundhouse/banner" ] || cat "$roundhouse/banner" ;; esac
    break
  fi
done
unset roundhouse
# Where `up` is not what runs here, python is still the image's.
case ":$PATH:" in
*:/opt/venv/bin:*) ;;
*) PATH=/opt/venv/bin:$PATH ;;
esac

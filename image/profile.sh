# shellcheck shell=dash
# /etc/profile.d/roundhouse.sh, for login shells: /etc/profile has just replaced PATH.
# shellcheck disable=SC2034 # shell.sh reads it
roundhouse_login=login
# shellcheck source=image/shell.sh
. /opt/roundhouse/shell.sh
unset roundhouse_login
# Where `up` is not what runs here, python is still the image's.
case ":$PATH:" in
*:/opt/venv/bin:*) ;;
*) PATH=/opt/venv/bin:$PATH ;;
esac

#!/usr/bin/env bash
# A Docker engine for a Debian machine that has none, as root and without systemd: CI, a chroot, a rented VM.
#
#   eval "$(image/engine.sh start)"    # prints the variables that `docker` wants; does nothing where one answers
#   image/engine.sh stop               # ends what `start` started, and its containers with it
#
# ENGINE_DIR is the folder of its programs and images (default /var/lib/roundhouse-engine); an image build wants 20 GB.
set -Eeuo pipefail

dir=${ENGINE_DIR:-/var/lib/roundhouse-engine}
socket=${ENGINE_SOCKET:-/run/roundhouse-docker.sock}
variables=("DOCKER_HOST=${DOCKER_HOST:-unix://$socket}" "DOCKER_CONFIG=$dir/config" "PATH=$dir/usr/bin:$dir/usr/sbin:$PATH")
say() { printf 'engine: %s\n' "$*" >&2; }

# Bookworm's own engine is too old for reproducible builds (BuildKit before 0.13 has no rewrite-timestamp) and has no
# buildx, so the next release's programs are unpacked into a folder; they need bookworm's libc only.
unpack() {
  if ((EUID)); then say "starting an engine needs root"; exit 69; fi
  say "installing runc and iptables, unpacking Debian trixie's docker into $dir"
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends runc iptables >&2
  mkdir -p "$dir"/{apt/state/lists/partial,apt/cache/archives/partial,config/cli-plugins}
  local repository
  # The mirror that this machine uses for its own packages.
  repository=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
  [[ $repository ]] || { say "no Debian mirror in apt's sources: start an engine by hand"; exit 69; }
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "$repository" >"$dir/apt/sources.list"
  (
    cd "$dir/apt"
    options=(-qq -o "Dir::State=$PWD/state" -o "Dir::Cache=$PWD/cache" -o "Dir::Etc::SourceList=$PWD/sources.list"
      -o Dir::Etc::SourceParts=- -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2
    apt-get "${options[@]}" download docker.io docker-cli docker-buildx docker-compose containerd >&2
    for package in *.deb; do dpkg-deb -x "$package" "$dir"; done
    rm -rf -- *.deb state cache
  )
  find "$dir/usr" -path '*/cli-plugins/docker-*' -exec ln -sft "$dir/config/cli-plugins" {} +
}

start() {
  if docker version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1; then
    say "one answers already"
    return
  fi
  [[ -x $dir/usr/sbin/dockerd ]] || unpack
  export "${variables[@]}"
  if ! docker version >/dev/null 2>&1; then
    mkdir -p "$dir/data"
    # containerd's image store: exact manifests, and digests that `docker load` keeps.
    printf '{"features": {"containerd-snapshotter": true}}\n' >"$dir/daemon.json"
    nohup dockerd --config-file "$dir/daemon.json" --host "unix://$socket" --data-root "$dir/data" \
      --exec-root "$dir/run" --pidfile "$dir/dockerd.pid" >"$dir/dockerd.log" 2>&1 </dev/null &
    for _ in {1..60}; do
      docker version >/dev/null 2>&1 && break
      sleep 0.5
    done
    if ! docker version >/dev/null 2>&1; then
      tail -n 20 "$dir/dockerd.log" >&2
      say "dockerd did not answer in 30 s; its log is $dir/dockerd.log"
      stop
      # A machine on which none can run makes no namespaces either; elsewhere it is a fault.
      unshare --mount true 2>/dev/null && exit 1
      exit 69
    fi
  fi
  say "$(docker version --format 'docker {{.Server.Version}}') at ${variables[0]#*=}"
  printf 'export %q\n' "${variables[@]}"
}

stop() {
  [[ -s $dir/dockerd.pid ]] || return 0
  local pid
  pid=$(<"$dir/dockerd.pid")
  kill "$pid"
  # tail ends with the process: dockerd is no child of this shell.
  timeout 60 tail --pid "$pid" -f /dev/null
  say "stopped"
}

case ${1-} in
  start | stop) "$1" ;;
  *) say "usage: image/engine.sh start|stop"; exit 78 ;;
esac

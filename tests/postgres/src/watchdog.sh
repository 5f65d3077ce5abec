# Ends a server and removes its folder ($1) once standard input is closed. The other end of that
# pipe is held by the process that started the server, and by nobody else.
trap '' INT TERM HUP
cd /
while read -r _; do :; done

# Whatever runs in the folder: the server and its backends, or the program that makes it.
left() {
    for process in /proc/[0-9]*; do
        if [ "$process/cwd" -ef "$1/data" ] || [ "$process/cwd" -ef "$1" ]; then
            echo "${process#/proc/}"
        fi
    done
}

tries=0
while [ -d "$1" ] && [ "$tries" -lt 300 ]; do
    tries=$((tries + 1))
    processes=$(left "$1")
    if [ -z "$processes" ]; then
        # A server that was killed leaves its shared memory behind.
        if [ -f "$1/data/postmaster.pid" ]; then
            memory=$(sed -n '7s/.* //p' "$1/data/postmaster.pid")
            [ -z "$memory" ] || ipcrm -m "$memory"
        fi
        rm -rf -- "$1"
    elif [ "$tries" -lt 150 ]; then
        # QUIT is PostgreSQL's immediate shutdown; a paused process must go on to take it.
        kill -s QUIT $processes
        kill -s CONT $processes
        sleep 0.03
    else
        kill -s KILL $processes
        sleep 0.03
    fi
done

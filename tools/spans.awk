# spans.awk - the spans of a timeline (--trace RUN.json), one a line, in the order in which they end:
#
#   process number, process, track number, track, begin, end (ms from the first one's begin), name
#
# with tabs in between. What was never ended, in a run that was killed, ends with the timeline. It reads
# what common/base/trace.c writes: one event a line.

# The number behind "key":, or "".
function number(key)
{
    if (!match($0, "\"" key "\":[0-9.]+"))
        return ""
    return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
}

# The string behind this beginning, without what JSON puts before special characters, or "".
function string(key,    text, plain, c)
{
    if (!match($0, key "\"([^\"\\\\]|\\\\.)*\""))
        return ""
    text = substr($0, RSTART, RLENGTH - 1)
    sub(key "\"", "", text)
    gsub(/\\u00[01][0-9a-f]|\\u007f/, " ", text)
    gsub(/\\ufffd/, "?", text)
    while ((c = index(text, "\\")) > 0) {
        plain = plain substr(text, 1, c - 1) substr(text, c + 1, 1)
        text = substr(text, c + 2)
    }
    return plain text
}

function tell(pid, tid, begin, end, name)
{
    printf "%d\t%s\t%d\t%s\t%.6f\t%.6f\t%s\n", pid, processes[pid], tid, tracks[pid, tid],
           (begin - zero) / 1000, (end - zero) / 1000, name
}

# A line that is no event, like the brackets, has no "ph".
!match($0, /"ph":"[A-Z]"/) { next }
{
    kind = substr($0, RSTART + 6, 1)
    pid = number("pid")
    tid = number("tid")
    ts = number("ts")
    if (ts != "" && zero == "")
        zero = ts
    if (ts + number("dur") > last)
        last = ts + number("dur")
}
kind == "M" && /"name":"process_name"/ { processes[pid] = string("\"args\":[{]\"name\":") }
kind == "M" && /"name":"thread_name"/ { tracks[pid, tid] = string("\"args\":[{]\"name\":") }
kind == "B" {
    depth = ++open[pid, tid]
    lanes[pid, tid] = 1
    begins[pid, tid, depth] = ts
    names[pid, tid, depth] = string("\"name\":")
}
kind == "E" && open[pid, tid] > 0 {
    depth = open[pid, tid]--
    tell(pid, tid, begins[pid, tid, depth], ts, names[pid, tid, depth])
}
kind == "X" { tell(pid, tid, ts, ts + number("dur"), string("\"name\":")) }
END {
    for (lane in lanes) {
        split(lane, at, SUBSEP)
        for (depth = open[lane]; depth > 0; depth--)
            tell(at[1], at[2], begins[lane, depth], last, names[lane, depth])
    }
}

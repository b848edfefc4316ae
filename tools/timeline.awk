# timeline.awk - draws (with svg.awk) what spans.awk tells, sorted by process, track and begin (the longer
# one first): a lane for each track, rows of rectangles for spans within spans, and an axis in ms.
#
#   -v step=N       from the beginning of the N-th training step, counted from 1 (0: a typical one)
#   -v steps=K      so many steps
#   -v unit=NAME    spans of this name ("" for none) take the place of training steps
#   -v picture=FILE where to
#
# A step lasts from one "forward" of the first process to the next one, or to the end of what both are
# in (an epoch). "forward" within "forward", or within "evaluate", begins none. Without any, everything
# is drawn. A unit lasts as long as it does in the first thread that has any; one within another is none.
#
# Exit status: 0 drawn (and what was is printed), 3 there are no spans, 4 there is no such step or unit (how
# many there are is printed).

BEGIN {
    FS = "\t"
    width = 900; gutter = 112; right = 886          # in between lie the lanes
    row = 20; gap = 3

    split("forward backward optimizer communication waiting loading other", kinds, " ")
    split("#8ab8f0 #c0a8ee #8fd19e #f5b562 #c6cad0 #7ed0c8 #e6a9c6", fills, " ")
    pattern[1] = "^forward"
    pattern[2] = "^backward"
    pattern[3] = "^optimizer"
    pattern[4] = "^(all_|reduce|broadcast|scatter|gather|send|receive|barrier|compare)"
    pattern[5] = "^(wait|meet)"
    pattern[6] = "^load"
    pattern[7] = ""
}

# --- reading: the spans, what they are in, and where steps begin ---------------------------------------

function is_within(name, depth,    d)
{
    for (d = 1; d < depth; d++)
        if (stack_name[d] == name)
            return 1
    return 0
}

{
    lane = $1 "\t" $3
    if (lane != lane_before) {
        lane_before = lane
        lane_process[++lanes] = $1
        process_name[$1] = $2
        lane_name[lanes] = $4
        inside = 0
    }
    while (inside > 0 && stack_end[inside] <= $5)
        inside--
    inside++
    stack_end[inside] = $6
    stack_name[inside] = $7

    spans++
    span_lane[spans] = lanes
    depth[spans] = inside
    begin[spans] = $5 + 0
    end[spans] = $6 + 0
    name[spans] = $7
    if (spans == 1 || begin[spans] < first) first = begin[spans]
    if (spans == 1 || end[spans] > last) last = end[spans]
}

function begins_step(depth)
{
    return unit == "" && $7 == "forward" && !is_within("forward", depth) && !is_within("evaluate", depth)
}
function begins_unit(depth) { return unit != "" && $7 == unit && !is_within(unit, depth) }

(begins_step(inside) || begins_unit(inside)) && (step_lane == "" || step_lane == lanes) {
    step_lane = lanes
    step_begin[++step_count] = $5 + 0
    step_limit[step_count] = unit != "" ? $6 + 0 : inside > 1 ? stack_end[inside - 1] + 0 : "none"
}

# --- the window: which part of it to draw --------------------------------------------------------------

function step_end(i,    e)
{
    e = i < step_count ? step_begin[i + 1] : last
    return step_limit[i] != "none" && step_limit[i] < e ? step_limit[i] : e
}

function duration(i) { return step_end(i + steps - 1) - step_begin[i] }

# Of the windows in the middle (half of them, at most 99), the one of median length.
function typical_step(    count, skip, from, to, i, j, shorter)
{
    count = step_count - steps + 1
    skip = count < 198 ? int(count / 4) : int(count / 2) - 49
    from = 1 + skip
    to = count - skip > from + 98 ? from + 98 : count - skip
    for (i = from; i <= to; i++) {
        shorter = 0
        for (j = from; j <= to; j++)
            shorter += duration(j) < duration(i) || (duration(j) == duration(i) && j < i)
        if (shorter == int((to - from) / 2))
            return i
    }
}

function choose_window()
{
    window_begin = first
    window_end = last
    window_name = "the whole run"
    if (step_count == 0)
        return step == 0 && unit == ""
    if (steps > step_count || step > step_count - steps + 1)
        return 0
    if (step == 0)
        step = typical_step()
    window_begin = step_begin[step]
    window_end = step_end(step + steps - 1)
    window_name = unit != "" ? unit " " step : steps == 1 ? "step " step : "steps " step
    if (steps > 1)
        window_name = window_name " to " (step + steps - 1)
    window_name = window_name " of " step_count
    return 1
}

function is_visible(i) { return end[i] > window_begin && begin[i] < window_end }

function x_of(time)
{
    return gutter + (time - window_begin) / (window_end - window_begin) * (right - gutter)
}

# Where a span begins in the picture, and how wide it is there.
function left_of(i) { return x_of(begin[i] > window_begin ? begin[i] : window_begin) }
function width_of(i)
{
    return x_of(end[i] < window_end ? end[i] : window_end) - left_of(i)
}

# In all of the picture, or nearly: another process's epoch may end a bit earlier.
function covers(i) { return width_of(i) >= 0.95 * (right - gutter) }

# Which rows a lane has. What is around everything that can be seen, like an epoch, is left out, with what
# comes before and behind it; what is hardly more than a line makes no lane and no row.
function choose_rows(    i, l)
{
    for (i = 1; i <= spans; i++)
        if (is_visible(i) && width_of(i) >= 4 && depth[i] > deepest[span_lane[i]])
            deepest[span_lane[i]] = depth[i]
    for (i = 1; i <= spans; i++) {
        l = span_lane[i]
        if (is_visible(i) && covers(i) && depth[i] < deepest[l] && depth[i] > around[l])
            around[l] = depth[i]
    }
    for (i = 1; i <= spans; i++) {
        l = span_lane[i]
        if (!is_visible(i) || depth[i] > deepest[l] || depth[i] <= around[l])
            continue
        drawn[i] = 1
        if (!(l in top) || depth[i] < top[l])
            top[l] = depth[i]
    }
    for (l = 1; l <= lanes; l++)
        if (l in top && !(lane_process[l] in process_drawn)) {
            process_drawn[lane_process[l]] = 1
            processes++
        }
}

# --- drawing -------------------------------------------------------------------------------------------

# The lanes from top to bottom; y_of[lane] is where the first row of one is.
function draw_lanes(    l, process, high)
{
    y = 4
    process = "none"
    for (l = 1; l <= lanes; l++) {
        if (!(l in top))
            continue
        if (processes > 1 && lane_process[l] != process) {
            y += process == "none" ? 0 : 4
            put_text("bold", 4, y, process_name[lane_process[l]])
            y += row
        }
        process = lane_process[l]
        high = (deepest[l] - top[l] + 1) * row
        put_box("lane", gutter, y, right - gutter, high, "")
        put_text("end", gutter - 7, y, lane_name[l])
        y_of[l] = y
        y += high + gap
    }
}

function kind_of(span,    k)
{
    for (k = 1; span !~ pattern[k]; k++)
        continue
    return k
}

# As much of a name as there is room for: all of it, its first word, the size at its end, or nothing.
function label(span, room,    word, size)
{
    word = size = span
    sub(/ .*/, "", word)
    sub(/^[^0-9]*/, "", size)
    return fits(span, room) ? span : fits(word, room) ? word : fits(size, room) ? size : ""
}

function draw_span(i,    k, x, wide, y)
{
    k = kind_of(name[i])
    used[k] = 1
    x = left_of(i)
    wide = width_of(i)
    y = y_of[span_lane[i]] + (depth[i] - top[span_lane[i]]) * row
    put_box("k" k, x, y, wide < 0.8 ? 0.8 : wide, row - 1,      # a line at least
            sprintf("%s, %.3g ms", name[i], end[i] - begin[i]))
    if (label(name[i], wide) != "")
        put_text("in", x + wide / 2, y, label(name[i], wide))
}

# 1, 2 or 5 times a power of ten, so that there are about ten of them.
function tick_distance(    tenth, d)
{
    tenth = (window_end - window_begin) / 10
    for (d = 1e-6; d * 10 <= tenth; d *= 10)
        continue
    return d * (tenth <= d * 1.001 ? 1 : tenth <= d * 2.001 ? 2 : tenth <= d * 5.001 ? 5 : 10)
}

function draw_axis(    d, n, x)
{
    d = tick_distance()
    for (n = 0; n * d <= (window_end - window_begin) * 1.0001; n++) {
        x = x_of(window_begin + n * d)
        put(sprintf("<path d=\"M%.1f 4V%d\"/>", x, y + 2))
        put_text("mid", x, y, sprintf("%.6g", n * d))
    }
    put_text("end", gutter - 7, y, "ms")
    y += row
}

function draw_legend(    k, x)
{
    x = gutter
    for (k = 1; k <= 7; k++) {
        if (!(k in used))
            continue
        put_box("k" k, x, y + 5, 10, 10, "")
        put_text("", x + 14, y, kinds[k])
        x += 30 + length(kinds[k]) * 6.8
    }
    put_text("end", right, y, window_name)
    y += row
}

function write_picture(    k)
{
    open_picture(width, y)
    print ".lane{fill:#888888;fill-opacity:.13}path{stroke:#888888;stroke-opacity:.35}" > picture
    for (k = 1; k <= 7; k++)
        print ".k" k "{fill:" fills[k] "}" > picture
    close_picture()
}

END {
    if (spans == 0)
        exit 3
    if (!choose_window() || window_end <= window_begin) {
        print step_count + 0
        exit 4
    }
    choose_rows()
    draw_lanes()
    draw_axis()
    for (i = 1; i <= spans; i++)
        if (drawn[i])
            draw_span(i)
    draw_legend()
    write_picture()
    printf "%s: %.1f ms\n", window_name, window_end - window_begin
}

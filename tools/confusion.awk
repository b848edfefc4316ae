# confusion.awk - draws (with svg.awk) a confusion matrix, as --confusion writes it:
#
#   label,cat,dog           the classes, by number or by name
#   cat,812,188             of the cats, so many were taken for cats, so many for dogs
#   dog,95,905
#
# A cell's color is its share of the row: blue where the class is right, orange where it is not. Numbers
# stand in the cells where there is room; a pointer that rests on one is told. On the right, what share of
# each class is right.
#
#   -v picture=FILE where to
#
# Exit status: 0 drawn (and the result is printed), 3 that is no such matrix (why is printed).

BEGIN {
    FS = ","
    levels = 10                             # of color
    bars = 64                               # how wide the bar of 100 % is
}

# --- reading: every number checked ---------------------------------------------------------------------

function shown(text)
{
    gsub(/[^ -~]/, "?", text)
    return "\"" substr(text, 1, 40) "\""
}

function refuse(line, why)
{
    print "line " line ": " why
    refused = 1
    exit 3
}

{ sub(/\r$/, "") }
NR == 1 {
    classes = NF - 1
    for (i = 1; i <= classes; i++) {
        name[i] = $(i + 1)
        if (name[i] == "" || name[i] ~ /[\001-\037\177]/)
            refuse(1, "column " i + 1 " is " shown(name[i]) ", not the name of a class")
        if (length(name[i]) > longest)
            longest = length(name[i])
    }
    next
}
NR > classes + 1 { refuse(NR, "one more than the " classes " classes of line 1") }
NF != classes + 1 { refuse(NR, "columns: " NF ", not " classes + 1 " as in line 1") }
($1 "") != (name[NR - 1] "") { refuse(NR, "class " shown($1) ", where " shown(name[NR - 1]) " should be") }
{
    row = NR - 1
    for (i = 1; i <= classes; i++) {
        if ($(i + 1) !~ /^[0-9]+$/ || length($(i + 1)) > 15)
            refuse(NR, "column " i + 1 " is " shown($(i + 1)) ", not a number of images")
        count[row, i] = $(i + 1) + 0
        of_class[row] += count[row, i]
        if (length(count[row, i]) > digits)
            digits = length(count[row, i])
    }
    images += of_class[row]
    right += count[row, row]
}

# --- drawing -------------------------------------------------------------------------------------------

function percent(part, whole) { return sprintf("%.1f %%", 100 * part / whole) }

# Rounded up: something is never drawn as nothing. Few of a class are wrong in the same way: there the root
# tells more.
function level(share, is_right) { return 1 + int(levels * (is_right ? share : sqrt(share)) - 1e-9) }

function color(red, green, blue, part)
{
    return sprintf("#%02x%02x%02x", 238 + (red - 238) * part, 240 + (green - 240) * part,
                   243 + (blue - 243) * part)
}

# In a picture without a thousand rows, a cell has some pixels; names stand at every so many.
function choose_sizes()
{
    wide = int(640 / classes)
    wide = wide > 64 ? 64 : wide < 2 ? 2 : wide
    high = wide > 34 ? 34 : wide
    gap = wide >= 12
    longest = longest > 24 ? 24 : longest
    slanted = !fits(sprintf("%" longest "s", ""), wide)
    numbers = fits(sprintf("%" digits "s", ""), wide) && high >= 15
    every_row = int((12 + high) / high)
    every_column = int((15 + wide) / wide)
    gutter = int(longest * 6.8) + 14
    end = gutter + classes * wide
    width = end + 14 + bars + 60
    width = width < gutter + 560 ? gutter + 560 : width
}

function draw_title()
{
    put_text("bold", 4, 4, sprintf("accuracy %.2f %%: %d of %d images", 100 * right / images, right, images))
    put_text("", 4, 24, "rows: what they are; columns: what they are taken for; bars: how much of a class is right")
    top = 48 + (slanted ? int(longest * 4.8) + 14 : 20)
}

function draw_names(    i, x, text)
{
    for (i = 1; i <= classes; i++) {
        text = substr(name[i], 1, 24)
        if ((i - 1) % every_row == 0)
            put_text("end", gutter - 7, top + (i - 0.5) * high - 10, text)
        x = gutter + (i - 0.5) * wide
        if ((i - 1) % every_column == 0 && slanted)
            put(sprintf("<text class=\"slanted\" transform=\"translate(%.1f,%d) rotate(-45)\">%s</text>",
                        x + 4, top - 5, escaped(text)))
        else if ((i - 1) % every_column == 0)
            put_text("mid", x, top - 20, text)
    }
}

function draw_cell(i, j,    x, y, told)
{
    x = gutter + (j - 1) * wide
    y = top + (i - 1) * high
    told = i == j ? name[i] ": right" : name[i] " taken for " name[j]
    put_box((i == j ? "r" : "w") level(count[i, j] / of_class[i], i == j), x, y, wide - gap, high - gap,
            told ", " count[i, j] " of " of_class[i] ", " percent(count[i, j], of_class[i]))
    if (numbers)
        put_text("in", x + (wide - gap) / 2, y + (high - gap) / 2 - 10, count[i, j])
}

function draw_bar(i,    y)
{
    y = top + (i - 1) * high
    put_box("zero", end + 14, y, bars, high - gap, "")
    if (of_class[i] > 0)
        put_box("bar", end + 14, y, bars * count[i, i] / of_class[i], high - gap,
                name[i] ": right, " percent(count[i, i], of_class[i]))
    if (high >= 15)
        put_text("", end + 20 + bars, y + (high - gap) / 2 - 10,
                 of_class[i] > 0 ? percent(count[i, i], of_class[i]) : "no images")
}

function draw_legend(    x, y, kind, share, n, i)
{
    y = top + classes * high + 8
    n = split("0.25 0.5 0.75 1 0.01 0.05 0.25 1", share, " ")
    x = gutter
    for (i = 1; i <= n; i++) {
        kind = i <= n / 2 ? "r" : "w"
        if (i % (n / 2) == 1) {
            x += i > 1 ? 14 : 0
            put_text("", x, y, kind == "r" ? "right:" : "wrong:")
            x += 46
        }
        put_box(kind level(share[i], kind == "r"), x, y + 4, 12, 12, "")
        put_text("", x + 16, y, 100 * share[i] " %")
        x += 56
    }
    height = y + 24
}

function write_picture(    k)
{
    open_picture(width, height)
    print ".slanted{text-anchor:start}.bar{fill:" color(95, 165, 240, 1) "}" > picture
    print ".zero{fill:" color(0, 0, 0, 0) "}" > picture
    for (k = 1; k <= levels; k++)
        print ".r" k "{fill:" color(95, 165, 240, k / levels) "}.w" k "{fill:" \
              color(242, 140, 60, k / levels) "}" > picture
    close_picture()
}

function worst_mistake(    i, j, a, b)
{
    for (i = 1; i <= classes; i++)
        for (j = 1; j <= classes; j++)
            if (i != j && count[i, j] > (a ? count[a, b] : 0)) {
                a = i
                b = j
            }
    return a ? name[a] " is taken for " name[b] " most often, " count[a, b] " times" : "no mistakes"
}

END {
    if (refused)
        exit 3
    if (NR <= classes)
        refuse(NR + 1, "class " shown(name[NR]) " is missing")
    if (images == 0)
        refuse(NR, "it ends, and no images were counted")
    choose_sizes()
    draw_title()
    draw_names()
    put_box("zero", gutter, top, classes * wide - gap, classes * high - gap, "")
    for (i = 1; i <= classes; i++) {
        for (j = 1; j <= classes; j++)
            if (count[i, j] > 0)
                draw_cell(i, j)
        draw_bar(i)
    }
    draw_legend()
    write_picture()
    printf "%.2f %% of %d images right; %s\n", 100 * right / images, images, worst_mistake()
}

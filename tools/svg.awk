# svg.awk - what timeline.awk and confusion.awk share: the parts of an SVG, written to -v picture=FILE.
#
# Text is gray, and dark in boxes: it can be read on white and on black.

function put(text) { parts[++part_count] = text }

function escaped(text)
{
    gsub(/&/, "\\&amp;", text)
    gsub(/</, "\\&lt;", text)
    gsub(/>/, "\\&gt;", text)
    return text
}

# class: begins here (""), ends here (end), has its middle here (mid, in).
function put_text(class, x, y, text)
{
    put(sprintf("<text class=\"%s\" x=\"%.1f\" y=\"%d\">%s</text>", class, x, y + 14, escaped(text)))
}

# title: what a pointer that rests on it is told, or "".
function put_box(class, x, y, wide, high, title)
{
    if (title != "")
        title = "<title>" escaped(title) "</title>"
    put(sprintf("<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\">%s</rect>",
                class, x, y, wide, high, title))
}

function fits(text, room) { return length(text) * 6.5 + 4 <= room }

# Behind this come the styles of the boxes, then close_picture with all that was put.
function open_picture(width, height,    size)
{
    size = sprintf("width=\"%d\" height=\"%d\"", width, height)
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" " size " viewBox=\"0 0 " width " " height "\">" > picture
    print "<style>text{font:12px sans-serif;fill:#777777;pointer-events:none}" > picture
    print ".bold{font-weight:bold}.end{text-anchor:end}.mid{text-anchor:middle}" > picture
    print ".in{text-anchor:middle;fill:#1a1a1a}" > picture
}

function close_picture(    i)
{
    print "</style>" > picture
    for (i = 1; i <= part_count; i++)
        print parts[i] > picture
    print "</svg>" > picture
    close(picture)
}

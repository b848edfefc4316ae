# functions.awk - prints functions of a C file, each with the comment above it.
#   awk -v names="send_bucket ddp_ready" -f functions.awk ddp.c
# The exit status is 1 if a function is missing.

BEGIN { count = split(names, wanted, " ") }

# A comment belongs to what follows it directly.
/^\/\// { comment = comment $0 "\n"; next }

/^[A-Za-z].*\(/ && !/;$/ {
    split($0, head, "(")
    name = head[1]
    sub(/.*[ *]/, "", name)
    text = comment $0 "\n"
    inside = !/}$/
    if (!inside) body[name] = text
    comment = ""
    next
}
inside {
    text = text $0 "\n"
    if (/^}/) { inside = 0; body[name] = text }
    next
}
{ comment = "" }

END {
    for (i = 1; i <= count; i++) {
        if (!(wanted[i] in body)) { print "no function " wanted[i] > "/dev/stderr"; exit 1 }
        printf "%s%s", (i > 1 ? "\n" : ""), body[wanted[i]]
    }
}

# hunks.awk - writes behind each @@ of a unified diff of two C files which function it is about:
#
#   diff -U3 OLD NEW | awk -v old=OLD -v new=NEW [-v color=1] -f hunks.awk
#
# diff -p and git tell the function that the hunk's first line is in, which is often the one above the
# change. Here it is the one that the first changed line is in, or else the section.

BEGIN {
    read_owners(old, old_owner)
    read_owners(new, new_owner)
    if (color) {
        bold = "\033[1m"; red = "\033[31m"; green = "\033[32m"; cyan = "\033[36m"; plain = "\033[0m"
    }
}

# owner[n]: the first line of the function or type that line n is in, its comment included; outside of all,
# the section's banner.
function read_owners(file, owner,    n, i, line, name, banner, opened, text) {
    while (file ~ /\.[ch]$/ && (getline line < file) > 0) {
        text[++n] = line
        if (line ~ /^\/\/ (====|----) /) {
            banner = line
            sub(/ [-=]+$/, "", banner)
        }
        if (line ~ /^[A-Za-z_]/) {
            name = line
            opened = 0
            sub(/ *\{$/, "", name)
        }
        if (line ~ /\{/)
            opened = 1
        owner[n] = name != "" ? name : banner
        if (line ~ /^}/ || line ~ /^[A-Za-z_].*\{.*}[ ;]*$/ || (!opened && line ~ /;( *\/\/.*)?$/))
            name = ""
    }
    for (i = n - 1; i > 0; i--)
        if (text[i] ~ /^\/\// && text[i] !~ /^\/\/ (====|----) / && text[i + 1] ~ /^(\/\/|[A-Za-z_])/)
            owner[i] = owner[i + 1]
}

# "-84,5" -> 84, and 5 in count.
function first_number(range, which,    part, parts) {
    parts = split(substr(range, 2), part, ",")
    count[which] = parts > 1 ? part[2] : 1
    return part[1] + (count[which] == 0)        # "84,0" is behind line 84
}

function see(name) {
    if (hunk_name == "" || (hunk_name ~ /^\/\// && name !~ /^\/\//))
        hunk_name = name
}

function paint(how, line) { print how line (how != "" ? plain : "") }

function print_hunk(    i) {
    print cyan at plain (hunk_name != "" ? " " hunk_name : "")
    for (i = 1; i <= lines; i++)
        paint(hunk[i] ~ /^-/ ? red : hunk[i] ~ /^\+/ ? green : "", hunk[i])
}

in_hunk && /^-/ { see(old_owner[old_line++]); count["-"]--; }
in_hunk && /^\+/ { see(new_owner[new_line++]); count["+"]-- }
in_hunk && !/^[-+\\]/ { old_line++; new_line++; count["-"]--; count["+"]-- }
in_hunk {
    hunk[++lines] = $0
    if (count["-"] <= 0 && count["+"] <= 0) {
        print_hunk()
        in_hunk = 0
    }
    next
}
/^@@ / {
    old_line = first_number($2, "-")
    new_line = first_number($3, "+")
    at = $1 " " $2 " " $3 " " $4
    hunk_name = ""
    lines = 0
    in_hunk = 1
    next
}
/^(---|\+\+\+) / { paint(bold, $0) }
/^\\/ { print }

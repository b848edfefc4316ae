# shellcheck shell=bash disable=SC2034,SC2154
# first_host must return the first host of each list that Slurm writes. For any other text it must return at most 255
# characters.
# fails with: the function returns the first host of each list
harness check.c slurm.c rendezvous_file.c
lists='gpu7                        gpu7
gpu7,gpu8                   gpu7
a.cluster.example           a.cluster.example
gpu[7-9]                    gpu7
gpu[7,9]                    gpu7
gpu[5]                      gpu5
gpu[7-9,12]-a,gpu20-a       gpu7-a
gpu[007-019,30]             gpu007
rack[1-2]node[03-04]        rack1node03
login-2,gpu[1-4]            login-2
r[1-2]-n[1,3]-x,gpu[1-4]    r1-n1-x'
awk '{ print $1 }' <<<"$lists" >input
awk '{ print $2 }' <<<"$lists" >expected
mapfile -t input <input
try hosts "$harness" "${input[@]}"
why="The third column shows the lists."
beside "the function returns the first host of each list" same list \
    expected expected found hosts.out "of the list" input

# Lists that Slurm never writes.
long=$(printf 'x%.0s' {1..300})
why="Slurm never writes such a list, but the function must not write past its array or read past the list."
for list in 'gpu[12' 'gpu[' 'gpu[]' '[' "$long" "gpu[$long" "gpu[$long-9]"; do
    try odd "$harness" "$list"
    [ "$status" = 0 ] ||
        wrong "the function returns for any list: $list" < <(echo "exit status $status"; last_lines odd)
    [ "$(head -1 odd.out | wc -c)" -le 256 ] ||
        wrong "the function returns at most 255 characters" < <(expected "at most 255" "$(head -1 odd.out | wc -c)")
done
passed "the function returns for any list"

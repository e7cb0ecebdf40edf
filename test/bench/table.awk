# The tables of test/bench/run, from lines "round clients script rate cpu".

# Median, least and greatest of value[1..n].
function cell(n, format,	i, j, v) {
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && value[j - 1] > value[j]; j--) {
			v = value[j]; value[j] = value[j - 1]; value[j - 1] = v
		}
	v = (value[int((n + 1) / 2)] + value[int(n / 2) + 1]) / 2
	printf " %22s", sprintf(format, v, value[1], value[n])
}

# What the rows below it have in common.
function title(label, counts,	i) {
	printf "\n%-44s", label
	n = split(counts, clients)
	for (i = 1; i <= n; i++)
		printf " %22s", clients[i] (clients[i] == 1 ? " client" : " clients")
	print ""
}

function rates(label, script,	i, r) {
	printf "%-44s", label
	for (i = 1; i <= n; i++) {
		for (r = 1; r <= rounds; r++)
			value[r] = rate[r, clients[i], script]
		cell(rounds, "%.0f (%.0f-%.0f)")
	}
	print ""
}

function ratios(label, script, rival,	i, r) {
	printf "%-44s", label
	for (i = 1; i <= n; i++) {
		for (r = 1; r <= rounds; r++)
			value[r] = rate[r, clients[i], script] / rate[r, clients[i], rival]
		cell(rounds, "%.2f (%.2f-%.2f)")
	}
	print ""
}

# The same of what they cost the server, with one client: less disturbed by
# what else the machine has to do.
function costs(label, script, rival,	r, known) {
	for (r = 1; r <= rounds; r++)
		if (cpu[r, 1, script] && cpu[r, 1, rival])
			value[++known] = cpu[r, 1, rival] / cpu[r, 1, script]
	if (!known)
		return
	printf "%-44s", label
	cell(known, "%.2f (%.2f-%.2f)")
	print ""
}

{ rate[$1, $2, $3] = $4; cpu[$1, $2, $3] = $5; rounds = $1 }

END {
	print rounds " rounds; median (least-greatest)"

	title("Ratio of rates", "1 8 32")
	ratios("heartbeat / SELECT 1", "heartbeat", "select")
	ratios("refused try / SELECT 1", "refused", "select")
	ratios("acquire, release / by hand", "lease", "pair")
	ratios("acquire, release with result / by hand", "lease-result", "pair")
	ratios("the same, in new connections / by hand", "new/lease-result", "new/pair")
	ratios("guard and write / FOR SHARE and write", "guard", "share")
	ratios("a protected row / another", "write-protected", "write")
	ratios("100 protected rows / others", "write-100-protected", "write-100")

	title("Ratio of the server's processor time, inverse", "1")
	costs("heartbeat / SELECT 1", "heartbeat", "select")
	costs("refused try / SELECT 1", "refused", "select")
	costs("acquire, release / by hand", "lease", "pair")
	costs("acquire, release with result / by hand", "lease-result", "pair")
	costs("guard and write / FOR SHARE and write", "guard", "share")
	costs("a protected row / another", "write-protected", "write")
	costs("100 protected rows / others", "write-100-protected", "write-100")

	title("Times a second, on this machine and this day", "1 8 32")
	rates("SELECT 1", "select")
	rates("heartbeat", "heartbeat")
	rates("acquire, release", "lease")
	rates("acquire, release by hand", "pair")

	if (!((1, 2, "hot-lease") in rate)) {
		print "\nOne hot lock: skipped, \"wait\" is not supported yet."
		exit
	}
	title("One hot lock, ratio of rates", "2 8 32")
	ratios("handoff / contended UPDATE of one row", "hot-lease", "hot-update")
	ratios("handoff / the same, BEGIN; UPDATE; COMMIT", "hot-lease", "hot-block")
	ratios("handoff / pg_advisory_lock (not durable)", "hot-lease", "hot-advisory")
	title("Times a second", "2 8 32")
	rates("handoff", "hot-lease")
	rates("contended UPDATE of one row", "hot-update")
	rates("BEGIN; UPDATE; COMMIT", "hot-block")
	rates("pg_advisory_lock (not durable)", "hot-advisory")
}

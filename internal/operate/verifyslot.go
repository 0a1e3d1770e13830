package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// positions are how the slot stands, and what the relay has saved about it.
type positions struct {
	exists       bool
	active       bool
	stranger     string // application of who streams, if that is no relay of this slot
	walStatus    string
	invalidation string
	confirmed    string
	catalogXmin  string // the oldest transaction that it may have to decode
	lagBytes     int64

	ever        bool // a relay has led it
	instance    string
	leads       bool // the lease has not run out
	saved       string
	vouched     bool // the saved position is not behind the confirmed one
	passed      bool // the confirmed one is at the target or beyond
	otherSystem bool // the lease is of another server
	otherTime   bool // or of another timeline of it
}

// lost reports whether the slot can never be streamed from again.
func (p *positions) lost() bool { return p.walStatus == "lost" || p.invalidation != "" }

// streams reports whether all is as it is while a relay streams.
func (p *positions) streams() bool {
	return p.exists && !p.lost() && p.active && p.stranger == "" && p.vouched && !p.otherTime
}

// verifySlotSQL is a statement before that on the lease: the position that is
// confirmed was saved before, so the other order, or one snapshot for both,
// could show a slot that is ahead of what was saved.
const verifySlotSQL = `
SELECT s.slot_name IS NOT NULL, coalesce(s.active, false), coalesce(a.application_name, ''), coalesce(s.wal_status, ''), coalesce(to_jsonb(s) ->> 'invalidation_reason', ''),
       coalesce(s.confirmed_flush_lsn, '0/0')::text, coalesce(s.catalog_xmin::text, ''),
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn), 0)::bigint
  FROM (VALUES (1)) one
  LEFT JOIN pg_replication_slots s ON s.slot_name = $1 AND s.plugin = 'pgoutput' AND s.database = current_database()
  LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid`

// verifyLeaseSQL compares what is confirmed ($2) with what was saved and with
// the target ($3), and the server with its own identity ($4, $5).
const verifyLeaseSQL = `
SELECT l.slot IS NOT NULL, coalesce(l.instance, ''), coalesce(l.lease_until > clock_timestamp(), false), coalesce(l.saved_lsn::text, ''),
       coalesce(l.saved_lsn >= $2::text::pg_lsn, false),
       coalesce($2::text::pg_lsn >= nullif($3, '')::pg_lsn, false),
       coalesce(l.system_identifier <> $4, false), coalesce(l.timeline <> $5, false)
  FROM (VALUES (1)) one LEFT JOIN {lease} l ON l.slot = $1`

// lookAtPositions reads them anew.
func (v *verification) lookAtPositions(ctx context.Context) error {
	p, server := positions{}, v.cfg.Server
	var holder string
	slot := v.t.cfg.Slot
	err := v.t.conn.QueryRow(ctx, verifySlotSQL, slot).
		Scan(&p.exists, &p.active, &holder, &p.walStatus, &p.invalidation, &p.confirmed, &p.catalogXmin, &p.lagBytes)
	if err == nil {
		err = v.t.conn.QueryRow(ctx, v.t.sql(verifyLeaseSQL), slot, p.confirmed, v.target, int64(server.SystemID), int32(server.Timeline)).
			Scan(&p.ever, &p.instance, &p.leads, &p.saved, &p.vouched, &p.passed, &p.otherSystem, &p.otherTime)
	}
	if err != nil {
		return err
	}
	if !v.isRelay(holder) {
		p.stranger = holder
	}
	v.positions = p
	return nil
}

// isRelay tells by its name whether a relay of the slot streams: as this
// configuration names it, or one that names itself otherwise before the slot. A
// name that is not shown, or cut off, proves nothing.
func (v *verification) isRelay(application string) bool {
	const most = 63 // bytes that the server keeps
	return application == "" || len(application) == most || application == v.t.conn.Config().RuntimeParams["application_name"] ||
		strings.HasSuffix(application, "/"+v.t.cfg.Slot)
}

const (
	// lookPause is the time between two looks, which cost little.
	lookPause = 300 * time.Millisecond
	// quietTime is how long to wait without a word.
	quietTime = 2 * time.Second
	// takeoverTime is how long it may take until another relay streams, or the same
	// one again: with nobody there, waiting on makes no sense.
	takeoverTime = 15 * time.Second
	// stillTime is how long a position must not have moved to have stalled. The
	// largest transactions take less.
	stillTime = 30 * time.Second
)

// watch looks at the slot, again and again while something is suspicious that
// the relay may be dealing with, and then judges.
func (v *verification) watch(ctx context.Context) error {
	// Whatever the rows showed is before this in the WAL.
	if err := v.t.conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&v.target); err != nil {
		return err
	}
	begun := time.Now()
	if err := v.lookAtPositions(ctx); err != nil {
		return err
	}
	first := v.positions.confirmed
	for told := v.cfg.Waiting == nil; ; {
		waited := time.Since(begun)
		waitsFor := v.waitsFor(waited)
		if waitsFor == "" {
			break
		}
		if !told && waited >= v.cfg.quiet {
			v.cfg.Waiting(waitsFor)
			told = true
		}
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := v.lookAtPositions(ctx); err != nil {
			return err
		}
		if err := v.lookAgain(ctx); err != nil {
			return err
		}
	}
	v.judgeSlot()
	v.judgeSuspects()
	return v.judgeUnsent(ctx, v.positions.confirmed == first && time.Since(begun) >= v.cfg.still)
}

// waitsFor is why to look again, "" if there is no reason, or no time.
func (v *verification) waitsFor(waited time.Duration) string {
	p := &v.positions
	unreleased, due := len(v.suspects.unreleased.ids), len(v.suspects.overdue.ids)
	switch {
	case waited >= v.cfg.Wait, p.otherSystem:
		return ""
	case (!p.active && !p.leads || p.stranger != "") && waited >= v.cfg.takeover:
		return ""
	case !p.streams():
		return "the slot is not streamed from, or its position is not vouched for"
	case len(v.unsent) > 0 && !p.passed:
		return fmt.Sprintf("%d READY rows may be in flight: the slot has not passed them", len(v.unsent))
	case unreleased > 0 || due > 0:
		return fmt.Sprintf("%d held rows are to be released and %d due ones to be requeued", unreleased, due)
	}
	return ""
}

// judgeSlot finds what is wrong with the slot and its lease.
func (v *verification) judgeSlot() {
	p := &v.positions
	if p.otherSystem {
		v.found(FoundOtherSystem, 1, nil, "")
	}
	switch {
	case !p.exists:
		v.found(FoundSlotMissing, 1, nil, "")
	case p.lost():
		v.found(FoundSlotLost, 1, nil, p.invalidation)
	case p.stranger != "":
		v.found(FoundSlotHeld, 1, nil, p.stranger)
	case !p.active && p.leads:
		v.note("%s leads and does not stream: it publishes READY rows from the table first, or is about to stream; see cdc-relay status", p.instance)
	case !p.active:
		v.found(FoundSlotInactive, 1, nil, p.lastLed())
	}
	if p.exists && !p.lost() && !p.otherSystem && (p.active || !p.leads) && p.ever && (!p.vouched || p.otherTime) {
		v.found(FoundSlotPosition, 1, nil, p.beyond())
	}
}

func (p *positions) lastLed() string {
	if !p.ever {
		return "no relay has ever led it"
	}
	return "last led by " + p.instance
}

func (p *positions) beyond() string {
	switch {
	case p.otherTime:
		return "another timeline"
	case p.saved == "":
		return "confirmed " + p.confirmed + ", nothing saved"
	default:
		return "confirmed " + p.confirmed + ", saved " + p.saved
	}
}

// manyReleases is how many aggregates a relay may have to release by turns.
const manyReleases = 2000

// judgeSuspects judges what nobody has touched all the time. Only a relay that
// streams, and whose slot has passed what was seen, ought to have done so: what
// is in flight cannot be behind it.
func (v *verification) judgeSuspects() {
	s := &v.suspects
	waiting := len(s.unreleased.ids) + len(s.overdue.ids)
	switch {
	case waiting == 0:
	case !v.positions.streams() || !v.positions.passed:
		v.note("%d held or due rows wait for a relay that streams, or may be in flight; run cdc-relay verify again then", waiting)
	case len(s.unreleased.ids) > manyReleases && s.released > 0:
		v.note("%d aggregates wait for their release, and %d were released meanwhile; run cdc-relay verify again later", len(s.unreleased.ids), s.released)
		v.foundRows(FoundOverdue, s.overdue.ids)
	default:
		v.foundRows(FoundUnreleased, s.unreleased.ids)
		v.foundRows(FoundOverdue, s.overdue.ids)
	}
}

// judgeUnsent tells what is missing of the rows that were READY and not parked;
// motionless tells that the slot has not moved for long.
func (v *verification) judgeUnsent(ctx context.Context, motionless bool) error {
	left, past, err := v.stillUnsent(ctx)
	if err != nil {
		return err
	}
	locked, who, err := v.lockedOf(ctx, left)
	if err != nil {
		return err
	}
	isLocked := func(id int64) bool { _, found := slices.BinarySearch(locked, id); return found }
	rest := slices.DeleteFunc(slices.Clone(left), isLocked)
	v.found(FoundLocked, int64(len(locked)), locked, who)
	p := &v.positions
	missing := rest
	switch vouched := p.exists && !p.lost() && p.vouched && !p.otherTime && !p.otherSystem; {
	case !vouched:
		missing = nil
		if len(rest) > 0 {
			v.note("%d READY rows are published from the table when a relay starts: whether the slot would bring them does not matter then", len(rest))
		}
	case !p.passed:
		missing = slices.DeleteFunc(past, isLocked)
	}
	v.foundRows(FoundMissing, missing)
	onTheWay := int64(len(left) - len(locked) - len(missing))
	v.report.Rows.OnTheWay = onTheWay
	if motionless && p.streams() && !p.passed {
		v.found(FoundStalled, onTheWay, left, fmt.Sprintf("%d bytes of WAL behind", p.lagBytes))
	}
	return nil
}

// lockedOf returns those of the rows that a session other than the relay's has
// locked, of the first ones, and who did.
func (v *verification) lockedOf(ctx context.Context, ids []int64) (locked []int64, who string, err error) {
	lockers, err := v.t.lockers(ctx, v.t.conn, ids[:min(len(ids), verifyPage)])
	if err != nil {
		return nil, "", err
	}
	relay := v.t.conn.Config().RuntimeParams["application_name"]
	for id, list := range lockers {
		if l := list[0]; relay == "" || l.Application != relay {
			locked, who = append(locked, id), l.String()
		}
	}
	return sorted(locked), who, nil
}

// sorted sorts ids in place.
func sorted(ids []int64) []int64 {
	slices.Sort(ids)
	return ids
}

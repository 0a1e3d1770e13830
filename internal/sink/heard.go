package sink

import "time"

// HeardAt is when a broker last sent anything on any connection, metadata
// included; zero if none has. Metadata is read every Config.MetadataTTL, so
// silence means that no broker answers. Safe for concurrent use.
func (p *Publisher) HeardAt() time.Time { return p.watcher.catalog.lastHeard() }

// heardLately reports whether a broker has sent something within the time in
// which metadata must have come.
func heardLately(c catalog, ttl time.Duration) bool {
	return time.Since(c.lastHeard()) < 3*ttl+time.Second
}

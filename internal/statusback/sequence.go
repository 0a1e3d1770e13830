package statusback

// sequence keeps the writes of a row in the order in which they came. What
// follows a parking names the next_attempt_at that the parking leaves, so it
// waits until that is settled; tried before, it would find the row as somebody
// else's. The entry of a row holds what waits, and is there while its parking
// is not settled.
type sequence map[int64][]write

// enter returns those of writes, in the same array, that need not wait, and
// notes the parkings among them.
func (s sequence) enter(writes []write) []write {
	free := writes[:0]
	for _, w := range writes {
		waiting, open := s[w.ID]
		if open {
			s[w.ID] = append(waiting, w)
			continue
		}
		if w.park != nil {
			s[w.ID] = nil
		}
		free = append(free, w)
	}
	return free
}

// leave notes that the parking of a row is settled, and returns what waited
// for that, to be entered anew.
func (s sequence) leave(id int64) []write {
	waiting := s[id]
	delete(s, id)
	return waiting
}

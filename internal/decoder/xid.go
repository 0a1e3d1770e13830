package decoder

// Widen returns the 64-bit transaction id whose lower half is xid and that
// lies nearest to near, a 64-bit id that was current around then. It is right
// as long as the two are less than 2^31 transactions apart, which PostgreSQL
// itself guarantees for all that is alive.
func Widen(xid uint32, near uint64) uint64 {
	distance := int64(int32(xid - uint32(near)))
	if distance < 0 && uint64(-distance) > near { // before the first epoch there is none
		return uint64(xid)
	}
	return near + uint64(distance)
}

package wal

// Buffers of gulps: two may be with the receiver while the third is filled.
const (
	bufferCount = 3
	bufferSize  = 256 << 10
	// readRoom is the least room that a read is given.
	readRoom = receiveWindow
	// maxMessage is the greatest length of a message: PostgreSQL makes none
	// longer.
	maxMessage = 1 << 30
)

// buffer is filled by the reader, then belongs to the receiver of the gulp
// until that releases it.
type buffer struct {
	data    []byte
	own     []byte // what data is, unless it had to grow for one large message
	release func()
}

func newBuffers() chan *buffer {
	free := make(chan *buffer, bufferCount)
	for range bufferCount {
		own := make([]byte, bufferSize)
		b := &buffer{data: own, own: own}
		b.release = func() {
			b.data = b.own // a larger one goes, so that memory is bounded
			free <- b
		}
		free <- b
	}
	return free
}

// grow makes room for a message of size bytes, of which tail has been read.
func (b *buffer) grow(size int, tail []byte) {
	if need := size + readRoom; need > len(b.data) {
		larger := make([]byte, need)
		copy(larger, tail)
		b.data = larger
		return
	}
	copy(b.data, tail) // the two may overlap
}

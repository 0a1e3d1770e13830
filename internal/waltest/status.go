package waltest

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pglogrepl"
)

// parseStatus reads a standby status update: 'r', three positions, the
// client's clock, and whether a reply is wanted.
func parseStatus(data []byte) (Status, error) {
	if len(data) != 34 || data[0] != pglogrepl.StandbyStatusUpdateByteID {
		return Status{}, fmt.Errorf("CopyData of %d bytes is no standby status", len(data))
	}
	position := func(at int) pglogrepl.LSN { return pglogrepl.LSN(binary.BigEndian.Uint64(data[at:])) }
	return Status{Written: position(1), Flushed: position(9), Applied: position(17), ReplyRequested: data[33] != 0}, nil
}

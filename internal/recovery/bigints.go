package recovery

import "github.com/jackc/pgx/v5/pgtype"

// bigints is a bigint[] argument that is encoded without an allocation for
// each element.
type bigints []int64

// Dimensions implements pgtype.ArrayGetter.
func (b bigints) Dimensions() []pgtype.ArrayDimension {
	if b == nil {
		return nil // NULL
	}
	return []pgtype.ArrayDimension{{Length: int32(len(b)), LowerBound: 1}}
}

// Index implements pgtype.ArrayGetter. A pointer fits into an interface as it is.
func (b bigints) Index(i int) any { return (*bigint)(&b[i]) }

// IndexType implements pgtype.ArrayGetter.
func (bigints) IndexType() any { return new(bigint) }

type bigint int64

// Int64Value implements pgtype.Int64Valuer.
func (b *bigint) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*b), Valid: true}, nil
}

package consumer

import (
	"math/rand/v2"
	"time"
)

// delay is how long to wait after attempt n, counted from 1.
func (p RetryPolicy) delay(n int) time.Duration {
	d := p.Base
	for range n - 1 {
		if d >= p.Max/2 {
			d = p.Max
			break
		}
		d *= 2
	}
	spread := p.Jitter * (2*rand.Float64() - 1)
	return d + time.Duration(spread*float64(d))
}

// backoff grows from lowest to highest by doubling, try by try.
func backoff(lowest, highest time.Duration, try int) time.Duration {
	return RetryPolicy{Base: lowest, Max: highest}.delay(try)
}

package harness

import (
	"math"
	"slices"
)

// Summary is what a series of samples comes down to.
type Summary struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Summarize leaves samples as they are. Without samples everything is zero. The median of an even number of samples is the mean of
// the middle two.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	return Summary{N: n, Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1]}
}

// Ratio is a / b, and NaN when b is zero.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

// NewSeries sums up samples that were taken by the way.
func NewSeries(name string, samples []float64) Series {
	return Series{Name: name, Samples: samples, Summary: Summarize(samples)}
}

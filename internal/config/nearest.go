package config

import "strings"

// nearest returns the candidate with the smallest edit distance to name.
func nearest(name string, candidates []string) string {
	best, least := "", int(^uint(0)>>1)
	for _, candidate := range candidates {
		if d := distance(name, candidate); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// nearestKey returns the path of the known key or section that is most like
// path. A key under the wrong section is found by its last name.
func nearestKey(path string) string {
	last := path[strings.LastIndexByte(path, '.')+1:]
	var all, sameLast []string
	for _, k := range keys {
		all = append(append(all, k.path), sectionsOf(k.path)...)
		if k.isSecret() {
			all = append(all, k.path+fileSuffix)
		}
		if k.path == last || strings.HasSuffix(k.path, "."+last) {
			sameLast = append(sameLast, k.path)
		}
	}
	near := nearest(path, all)
	if len(sameLast) > 0 && distance(path, near) > 2 {
		return nearest(path, sameLast)
	}
	return near
}

// sectionsOf returns the sections around path, the outermost first.
func sectionsOf(path string) []string {
	var sections []string
	for i := range len(path) {
		if path[i] == '.' {
			sections = append(sections, path[:i])
		}
	}
	return sections
}

// distance is the number of bytes to insert, delete or replace to get from a
// to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

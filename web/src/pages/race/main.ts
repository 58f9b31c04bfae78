import { mount } from 'svelte';
import '../../lib/base.css';
import Race from './Race.svelte';

mount(Race, { target: document.getElementById('app')! });
